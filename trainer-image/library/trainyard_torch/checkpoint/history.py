"""The checkpoints of a job: which there are, which of them are whole, and which go. Reads and writes the store; the rules are elsewhere."""

from __future__ import annotations

import json
import re
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from trainyard_torch.checkpoint.lineage import Claim, Incarnation, Keep, past, usable
from trainyard_torch.checkpoint.manifest import NAME, BrokenError, Manifest, Name
from trainyard_torch.checkpoint.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainyard_torch.checkpoint.store import Store

LATEST = "LATEST"
"""The file that holds the name of the newest checkpoint's folder, for people and for other programs."""
CLAIMS = "attempts"
MOST_ATTEMPTS = 999_999
CLAIM = re.compile(r"(\d{6})-([0-9a-f]{8})\.json")
TRIES = 10


class LeftBehindError(Exception):
    """A later attempt has begun: this one must not write any more."""


class History:
    """The checkpoints in a store, as one attempt sees them. One process of the training uses it, rank 0.

    Args:
        store: the folder of all of them.
        who: which start of which job this is.

    Attributes:
        attempt: the number of this attempt in the store; 0 before it has made its claim.
        mark: a word that stands in its claim alone; "" before that is made.

    All methods raise StoreError where the store cannot be used.
    """

    def __init__(self, store: Store, who: Incarnation | None = None) -> None:
        self._store, self._who, self._began = store, who or Incarnation(), time.time()
        self._read: dict[str, Claim] = {}
        self.attempt, self.mark = 0, ""

    def usable(self) -> list[Name]:
        """What this attempt may go on from, the best first. That they are whole is not known yet."""
        return self.counting(self._names())

    def counting(self, names: Iterable[Name]) -> list[Name]:
        """Those of these checkpoints that this attempt may go on from, wherever they are, the best first."""
        # Also by its own claim: what it passed over, and what others have written beyond that, counts no more.
        return usable(names, self.claims(), 1 + (self.attempt or self._next()))

    def has_any(self) -> bool:
        """Whether there was a whole checkpoint ever that counts: what a training leaves that ends amid its first one is none.

        Nor is what an attempt has written that was told a moment too late that another one had begun without it.
        """
        text = self._store.read(LATEST)
        name = None if text is None else Name.parse(text.decode(errors="replace").strip())
        return text is not None and (name is None or bool(self.counting([name])))

    def claims(self) -> list[Claim]:
        """Those of all attempts so far."""
        return [self._claim(file) for file in self._files()]

    def past(self) -> tuple[float, int]:
        """Seconds since this job first began, and how often it has begun again."""
        return past(self.claims(), self._who, time.time())

    def listed(self, name: Name) -> Manifest:
        """The manifest of a checkpoint that has all its files in their sizes. Raises BrokenError, with what is wrong, where it has not."""
        manifest = self._manifest(name)
        for path, expected in manifest.files.items():
            size = self._store.size(f"{name}/{path}")
            if size is None:
                raise BrokenError(f"{path} is missing")
            if size != expected.size:
                raise BrokenError(f"{path} has {size} bytes in place of {expected.size}")
        return manifest

    def begin(self) -> None:
        """From now on no earlier attempt writes or removes checkpoints; what this one goes on from is still to be found, and claimed.

        Raises:
            LeftBehindError: a later attempt of the same job has begun already, or so many others are starting that none gets through.
        """
        for _ in range(TRIES):
            if after := [claim for claim in self.claims() if not claim.is_before(self._who)]:
                raise LeftBehindError(
                    f"attempt {after[-1].who.attempt} of this job has begun, and this is attempt {self._who.attempt}: its "
                    "checkpoints do not count any more"
                )
            self.attempt, self.mark = self._next(), uuid.uuid4().hex[:8]
            self._say({})
            # Who has begun at the same moment has the same number, and sees the same: both take another one.
            if [file for file in self._files() if file.startswith(f"{self.attempt:06}")] == [self._own]:
                return
            self._store.remove(f"{CLAIMS}/{self._own}")
        raise LeftBehindError(
            f"others begin to use {self._store.url} all the time: give each training a folder of its own"
        )

    def claim(self, base: Name | None) -> None:
        """This attempt goes on from `base`: what others have beyond it counts no more. After `begin`.

        Raises:
            LeftBehindError: a later attempt has begun.
        """
        self._check()
        self._say({"base": str(base) if base else None})

    def commit(self, manifest: Manifest) -> None:
        """All files of this checkpoint are stored: from now on it is one.

        Raises:
            LeftBehindError: a later attempt has begun.
        """
        self._check()
        self._store.settle(str(manifest.name))
        self._store.write(f"{manifest.name}/{NAME}", manifest.text().encode())
        self._check()
        self._store.write(LATEST, f"{manifest.name}\n".encode())

    def tidy(self, keep: Keep) -> list[Name]:
        """Remove what is not kept any more, and what was never finished though something newer is. Returns what was removed.

        Raises:
            LeftBehindError: a later attempt has begun, and may need what this one would remove.
        """
        self._check()
        manifests = {}
        for name in self.usable():
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

    def _say(self, said: dict[str, str | None]) -> None:
        who = {"job": self._who.job, "attempt": self._who.attempt, "time": self._began}
        self._store.write(f"{CLAIMS}/{self._own}", json.dumps({**said, **who}).encode())

    def _check(self) -> None:
        last = max(self._files(), default="")
        if last != self._own:
            raise LeftBehindError(
                f"another attempt has begun to write into {self._store.url}, number {int(last[:6]) if last else 0} there, and this is number "
                f"{self.attempt}: its checkpoints do not count any more"
            )

    @property
    def _own(self) -> str:
        return f"{self.attempt:06}-{self.mark}.json"

    def _next(self) -> int:
        last = max((int(file[:6]) for file in self._files()), default=0)
        if last >= MOST_ATTEMPTS:
            raise StoreError(
                f"{self._store.url}/{CLAIMS} has a file of attempt {last}, after which there is no number left: remove it, if no training of yours has made it"
            )
        return 1 + last

    def _names(self) -> list[Name]:
        return [name for folder in self._store.folders() if (name := Name.parse(folder))]

    def _manifest(self, name: Name) -> Manifest:
        text = self._store.read(f"{name}/{NAME}")
        if text is None:
            raise BrokenError(f"{NAME} is missing: it was never finished")
        return Manifest.parse(text, name)

    def _files(self) -> list[str]:
        return sorted(file for file in self._store.files(CLAIMS) if CLAIM.fullmatch(file))

    def _claim(self, file: str) -> Claim:
        if file not in self._read:
            claim = _parsed(file, self._store.read(f"{CLAIMS}/{file}"))
            if not claim.legible:
                # Its attempt may still be looking for what it goes on from.
                return claim
            self._read[file] = claim
        return self._read[file]


def verify(store: Store, manifest: Manifest, paths: Iterable[str]) -> None:
    """Raises BrokenError where one of these files has another content than when it was written. Reads all of them."""
    for path in paths:
        if store.measure(f"{manifest.name}/{path}") != manifest.files[path]:
            raise BrokenError(f"{path} was changed after it was written: its checksum is another one")


def _parsed(file: str, text: bytes | None) -> Claim:
    attempt, mark = int(file[:6]), file[7:15]
    who, began = Incarnation(), 0.0
    try:
        said = json.loads(text or b"")
        who, began = Incarnation(str(said["job"]), int(said["attempt"])), float(said["time"])
        base = said["base"]
        name = Name.parse(base) if base is not None else None
        if base is None or name is not None:
            return Claim(attempt, name, mark, who, began)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        pass
    return Claim(attempt, None, mark, who, began, legible=False)
