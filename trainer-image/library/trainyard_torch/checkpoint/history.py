"""The checkpoints of a job: which exist, which are usable, and which are removed. Reads and writes the store; the rules are in `lineage`."""

from __future__ import annotations

import json
import re
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from trainyard_torch.checkpoint.lineage import Claim, JobAttempt, Retention, past, usable
from trainyard_torch.checkpoint.manifest import NAME, CorruptCheckpointError, Manifest, Name
from trainyard_torch.checkpoint.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trainyard_torch.checkpoint.store import Store

LATEST = "LATEST"
"""The file with the name of the newest checkpoint's folder, for people and for other programs."""
CLAIMS = "attempts"
MOST_ATTEMPTS = 999_999
CLAIM = re.compile(r"(\d{6})-([0-9a-f]{8})\.json")
TRIES = 10


class StaleAttemptError(Exception):
    """A later attempt has started: this one must not write any more."""


class History:
    """The checkpoints in a store, as one attempt sees them. Only rank 0 uses it.

    Args:
        store: the folder of all checkpoints.
        job_attempt: the job and attempt of this process.

    Attributes:
        attempt: the number of this attempt in the store; 0 before its claim.
        mark: random text that identifies this attempt's claim; "" before `begin`.

    All methods raise StoreError if the store cannot be used.
    """

    def __init__(self, store: Store, job_attempt: JobAttempt | None = None) -> None:
        self._store, self._who, self._began = store, job_attempt or JobAttempt(), time.time()
        self._read: dict[str, Claim] = {}
        self.attempt, self.mark = 0, ""

    def usable(self) -> list[Name]:
        """Return the checkpoints that this attempt may resume from, the best first. Their files are not verified yet."""
        return self.counting(self._names())

    def counting(self, names: Iterable[Name]) -> list[Name]:
        """Return those of these checkpoints that this attempt may resume from, the best first, wherever they are stored."""
        # This attempt's own claim counts too: checkpoints that it skipped, and what others wrote after them, are excluded.
        return usable(names, self.claims(), 1 + (self.attempt or self._next()))

    def has_any(self) -> bool:
        """Return whether a usable checkpoint was ever committed. A training that ended during its first checkpoint has none.

        Commits of a stale attempt that noticed its successor too late do not count.
        """
        text = self._store.read(LATEST)
        name = None if text is None else Name.parse(text.decode(errors="replace").strip())
        return text is not None and (name is None or bool(self.counting([name])))

    def claims(self) -> list[Claim]:
        """Return the claims of all attempts so far."""
        return [self._claim(file) for file in self._files()]

    def past(self) -> tuple[float, int]:
        """Return the seconds since this job's first start, and the number of restarts since."""
        return past(self.claims(), self._who, time.time())

    def listed(self, name: Name) -> Manifest:
        """Return the manifest of a checkpoint whose files all exist with their sizes. Raises CorruptCheckpointError with the difference otherwise."""
        manifest = self._manifest(name)
        for path, expected in manifest.files.items():
            size = self._store.size(f"{name}/{path}")
            if size is None:
                raise CorruptCheckpointError(f"{path} is missing")
            if size != expected.size:
                raise CorruptCheckpointError(f"{path} has {size} bytes instead of {expected.size}")
        return manifest

    def begin(self) -> None:
        """Register this attempt: earlier attempts can no longer write or remove checkpoints. `claim` records the base afterwards.

        Raises:
            StaleAttemptError: a later attempt of the same job has started, or too many others are starting at the same time.
        """
        for _ in range(TRIES):
            if after := [claim for claim in self.claims() if not claim.is_before(self._who)]:
                raise StaleAttemptError(
                    f"attempt {after[-1].job_attempt.attempt} of this job has started, and this is attempt {self._who.attempt}: its "
                    "checkpoints do not count any more"
                )
            self.attempt, self.mark = self._next(), uuid.uuid4().hex[:8]
            self._write_claim({})
            # Attempts that start at the same moment choose the same number and see each other: both choose another one.
            if [file for file in self._files() if file.startswith(f"{self.attempt:06}")] == [self._own]:
                return
            self._store.remove(f"{CLAIMS}/{self._own}")
        raise StaleAttemptError(
            f"other trainings keep starting in {self._store.url}: give each training its own folder"
        )

    def claim(self, base: Name | None) -> None:
        """Record that this attempt continues from `base`: checkpoints of others beyond it no longer count. Call it after `begin`.

        Raises:
            StaleAttemptError: a later attempt has started.
        """
        self._check()
        self._write_claim({"base": str(base) if base else None})

    def commit(self, manifest: Manifest) -> None:
        """Commit a checkpoint: all its files are stored.

        Raises:
            StaleAttemptError: a later attempt has started.
        """
        self._check()
        self._store.sync_folder(str(manifest.name))
        self._store.write(f"{manifest.name}/{NAME}", manifest.text().encode())
        self._check()
        self._store.write(LATEST, f"{manifest.name}\n".encode())

    def tidy(self, keep: Retention) -> list[Name]:
        """Remove checkpoints that are not kept, and unfinished ones older than a finished one. Return the removed ones.

        Raises:
            StaleAttemptError: a later attempt has started, and may need what this one would remove.
        """
        self._check()
        manifests = {}
        for name in self.usable():
            with suppress(CorruptCheckpointError):
                manifests[name] = self._manifest(name)
        if not manifests:
            return []
        superfluous = keep.superfluous([*manifests], {name: manifest.metrics for name, manifest in manifests.items()})
        unfinished = [name for name in self._names() if name not in manifests and name < max(manifests)]
        for name in (*superfluous, *unfinished):
            # Remove the manifest first: a kill in between must not leave a partial checkpoint that looks complete.
            self._store.remove(f"{name}/{NAME}")
            self._store.remove(str(name))
        return [*superfluous, *unfinished]

    def _write_claim(self, content: dict[str, str | None]) -> None:
        job_attempt = {"job": self._who.job, "attempt": self._who.attempt, "time": self._began}
        self._store.write(f"{CLAIMS}/{self._own}", json.dumps({**content, **job_attempt}).encode())

    def _check(self) -> None:
        last = max(self._files(), default="")
        if last != self._own:
            raise StaleAttemptError(
                f"another attempt has started to write into {self._store.url}, number {int(last[:6]) if last else 0} there, and this is number "
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
            raise CorruptCheckpointError(f"{NAME} is missing: it was never finished")
        return Manifest.parse(text, name)

    def _files(self) -> list[str]:
        return sorted(file for file in self._store.files(CLAIMS) if CLAIM.fullmatch(file))

    def _claim(self, file: str) -> Claim:
        if file not in self._read:
            claim = _parsed(file, self._store.read(f"{CLAIMS}/{file}"))
            if not claim.legible:
                # Its attempt may still be choosing the checkpoint that it resumes from.
                return claim
            self._read[file] = claim
        return self._read[file]


def verify(store: Store, manifest: Manifest, paths: Iterable[str], *, keep: bool = False) -> dict[str, bytearray]:
    """Verify the content of all these files by reading them. Return their contents if they are to be kept.

    Raises:
        CorruptCheckpointError: a file has changed.
    """
    contents: dict[str, bytearray] = {}
    for path in paths:
        place, expected = f"{manifest.name}/{path}", manifest.files[path]
        # No memory for a size that the file does not have.
        content = bytearray(expected.size) if keep and store.size(place) == expected.size else None
        if store.measure(place, content, expected=expected.size) != expected:
            raise CorruptCheckpointError(f"{path} was changed after it was written: its checksum is another one")
        if content is not None:
            contents[path] = content
    return contents


def _parsed(file: str, text: bytes | None) -> Claim:
    attempt, mark = int(file[:6]), file[7:15]
    job_attempt, began = JobAttempt(), 0.0
    try:
        content = json.loads(text or b"")
        job_attempt, began = JobAttempt(str(content["job"]), int(content["attempt"])), float(content["time"])
        base = content["base"]
        name = Name.parse(base) if base is not None else None
        if base is None or name is not None:
            return Claim(attempt, name, mark, job_attempt, began)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        pass
    return Claim(attempt, None, mark, job_attempt, began, legible=False)
