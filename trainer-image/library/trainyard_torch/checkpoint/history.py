"""The checkpoints of a job: which there are, which of them are whole, and which go. Reads and writes the store; the rules are elsewhere."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainyard_torch.checkpoint.lineage import Claim, Keep, usable
from trainyard_torch.checkpoint.manifest import NAME, BrokenError, Manifest, Name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainyard_torch.checkpoint.store import Store

LATEST = "LATEST"
"""The file that holds the name of the newest checkpoint's folder, for people and for other programs."""
CLAIMS = "attempts"
CLAIM = re.compile(r"(\d{6})\.json")


class LeftBehindError(Exception):
    """A later attempt has begun: this one must not write any more."""


@dataclass(frozen=True)
class Found:
    """What an attempt goes on from.

    Attributes:
        manifest: that of the checkpoint; None where the training begins at its beginning.
        passed_over: the checkpoints that would have been better, each with what is wrong with it.
    """

    manifest: Manifest | None
    passed_over: Sequence[tuple[Name, str]] = field(default_factory=tuple)


class History:
    """The checkpoints in a store, as one attempt sees them. One process of the job uses it, rank 0.

    Args:
        store: the folder of all of them.
        attempt: which attempt this is; None: the one after the last that has made its claim.

    Raises:
        StoreError: the store cannot be read. So do all methods.
    """

    def __init__(self, store: Store, attempt: int | None = None) -> None:
        self._store = store
        self._read: dict[int, Claim] = {}
        self.attempt = 1 + max(self._attempts(), default=0) if attempt is None else attempt

    def find(self, *, thorough: bool = True) -> Found:
        """The best checkpoint that is whole.

        `thorough`: by the checksums of all files, not by their sizes alone.
        """
        passed_over: list[tuple[Name, str]] = []
        for name in self._usable():
            try:
                return Found(self.verified(name, thorough=thorough), passed_over)
            except BrokenError as error:
                passed_over.append((name, str(error)))
        return Found(None, passed_over)

    def verified(self, name: Name, *, thorough: bool = True) -> Manifest:
        """The manifest of a checkpoint that is whole. Raises BrokenError, with what is wrong, where it is not."""
        manifest = self._manifest(name)
        for path, expected in manifest.files.items():
            size = self._store.size(f"{name}/{path}")
            if size is None:
                raise BrokenError(f"{path} is missing")
            if size != expected.size:
                raise BrokenError(f"{path} has {size} bytes in place of {expected.size}")
            if thorough and self._store.measure(f"{name}/{path}") != expected:
                raise BrokenError(f"{path} was changed after it was written: its checksum is another one")
        return manifest

    def claim(self, base: Name | None) -> None:
        """From now on this attempt alone writes checkpoints, having gone on from `base`.

        Raises:
            LeftBehindError: a later attempt has begun already.
        """
        self._check()
        said = {"attempt": self.attempt, "base": str(base) if base else None}
        self._store.write(_claim_file(self.attempt), json.dumps(said).encode())

    def commit(self, manifest: Manifest) -> None:
        """All files of this checkpoint are stored: from now on it is one.

        Raises:
            LeftBehindError: a later attempt has begun.
        """
        self._check()
        self._store.settle(str(manifest.name))
        self._store.write(f"{manifest.name}/{NAME}", manifest.text().encode())
        self._store.write(LATEST, f"{manifest.name}\n".encode())

    def tidy(self, keep: Keep) -> list[Name]:
        """Remove what is not kept any more, and what was never finished though something newer is. Returns what was removed.

        Raises:
            LeftBehindError: a later attempt has begun, and may need what this one would remove.
        """
        self._check()
        manifests = {}
        for name in self._usable():
            with suppress(BrokenError):
                manifests[name] = self._manifest(name)
        if not manifests:
            return []
        superfluous = keep.superfluous([*manifests], {name: manifest.metrics for name, manifest in manifests.items()})
        unfinished = [name for name in self._names() if name not in manifests and name < max(manifests)]
        for name in (*superfluous, *unfinished):
            # The manifest first: who is killed in between leaves no half checkpoint that looks whole.
            self._store.remove(f"{name}/{NAME}")
            self._store.remove(str(name))
        return [*superfluous, *unfinished]

    def _check(self) -> None:
        if (last := max(self._attempts(), default=0)) > self.attempt:
            raise LeftBehindError(
                f"attempt {last} has begun, and this is attempt {self.attempt}: its checkpoints do not count any more"
            )

    def _usable(self) -> list[Name]:
        return usable(self._names(), self._claims(), self.attempt)

    def _names(self) -> list[Name]:
        return [name for folder in self._store.folders() if (name := Name.parse(folder))]

    def _manifest(self, name: Name) -> Manifest:
        text = self._store.read(f"{name}/{NAME}")
        if text is None:
            raise BrokenError(f"{NAME} is missing: it was never finished")
        return Manifest.parse(text, name)

    def _claims(self) -> list[Claim]:
        for attempt in self._attempts():
            if attempt not in self._read:
                # A claim does not change once its attempt is over, and of one's own nobody asks.
                self._read[attempt] = self._claim(attempt)
        return [*self._read.values()]

    def _claim(self, attempt: int) -> Claim:
        try:
            base = json.loads(self._store.read(_claim_file(attempt)) or b"")["base"]
        except (ValueError, KeyError, TypeError):
            return Claim(attempt, None, legible=False)
        name = Name.parse(base) if isinstance(base, str) else None
        return Claim(attempt, name, legible=base is None or name is not None)

    def _attempts(self) -> list[int]:
        return [int(named[1]) for file in self._store.files(CLAIMS) if (named := CLAIM.fullmatch(file))]


def _claim_file(attempt: int) -> str:
    return f"{CLAIMS}/{attempt:06}.json"
