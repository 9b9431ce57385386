"""The manifest of a checkpoint: its content, and how to verify that it is complete. Pure.

Each checkpoint is a folder of its own, named by step and attempt, and is never overwritten. Its manifest is written atomically after all
other files. A folder without one is no checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
NAME = "MANIFEST.json"
MOST_STEPS, MOST_ATTEMPTS = 10**12, 10**6
FOLDER = re.compile(r"step-(\d{12})-(\d{6})")
KINDS: Mapping[str, tuple[type, ...]] = {
    "step": (int,),
    "attempt": (int,),
    "world_size": (int,),
    "mesh": (dict,),
    "data": (dict,),
    "metrics": (dict,),
    "time": (int, float),
}
"""The JSON types of the fields."""


class CorruptCheckpointError(Exception):
    """A checkpoint is incomplete or was changed. The message says which and why, independent of how this was found."""


@dataclass(frozen=True, order=True)
class Name:
    """The key of a checkpoint: its last step, and the attempt that wrote it.

    Raises:
        ValueError: a number is out of range.
    """

    step: int
    attempt: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.step < MOST_STEPS:
            raise ValueError(f"step must be from 0 to {MOST_STEPS - 1}, got {self.step}")
        if not 0 <= self.attempt < MOST_ATTEMPTS:
            raise ValueError(f"attempt must be from 0 to {MOST_ATTEMPTS - 1}, got {self.attempt}")

    @override
    def __str__(self) -> str:
        return f"step-{self.step:012}-{self.attempt:06}"

    @classmethod
    def parse(cls, folder: str) -> Name | None:
        """Return the key of a folder by its name; None if it is no checkpoint."""
        found = FOLDER.fullmatch(folder)
        return cls(int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True)
class File:
    """A file of a checkpoint: its size in bytes, and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint.

    Attributes:
        step: its last step.
        attempt: the attempt that wrote it, as counted in this store (`Claim`).
        world_size: the number of processes at that time.
        mesh: their layout, the outermost dimension first: `{"data": 2, "tensor": 4}`.
        data: the position in the data (`Batches.state`).
        metrics: numbers by which checkpoints can be compared.
        time: seconds since 1970.
        files: all its files except the manifest, by their path in the folder.
    """

    step: int
    attempt: int
    world_size: int
    mesh: Mapping[str, int] = field(default_factory=dict)
    data: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    time: float = 0.0
    files: Mapping[str, File] = field(default_factory=dict)

    @property
    def name(self) -> Name:
        """The name of its folder."""
        return Name(self.step, self.attempt)

    def text(self) -> str:
        """Return the manifest as JSON with a checksum of its own."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps({**content, "sha256": digest(content)}, indent=1) + "\n"

    def of(self, files: Mapping[str, File]) -> Manifest:
        """Return the manifest with these files."""
        return replace(self, files=dict(sorted(files.items())))

    @classmethod
    def parse(cls, text: str | bytes, name: Name) -> Manifest:
        """Parse the manifest from the folder of this name.

        Raises:
            CorruptCheckpointError: it is incomplete, was changed, or belongs to another checkpoint or a later release.
        """
        try:
            content = json.loads(text)
            stored = content.pop("sha256")
            made = content.pop("format")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise CorruptCheckpointError(f"{NAME} cannot be read: it is not valid JSON of this library") from error
        if made != FORMAT:
            raise CorruptCheckpointError(
                f"{NAME} has format {made!r}, and this release reads {FORMAT}: a later one has written it"
            )
        if digest({"format": made, **content}) != stored:
            raise CorruptCheckpointError(f"{NAME} was changed after it was written: its checksum is another one")
        try:
            files = {path: File(**each) for path, each in content.pop("files").items()}
            manifest = cls(**content, files=files)
            own = manifest.name
        except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
            raise CorruptCheckpointError(f"{NAME} lacks a field, or has one that is not known: {error}") from error
        if wrong := [field for field, kinds in KINDS.items() if type(getattr(manifest, field)) not in kinds]:
            kind = type(getattr(manifest, wrong[0])).__name__
            raise CorruptCheckpointError(f"{NAME} has a {kind} in place of the {wrong[0]}")
        if outside := [path for path in files if not path.isprintable() or {"", ".", ".."} & {*path.split("/")}]:
            raise CorruptCheckpointError(f"{NAME} names {outside[0]!r}, which is not in the folder")
        if own != name:
            raise CorruptCheckpointError(f"{NAME} is of {own}: the folder was copied or renamed")
        return manifest


def digest(content: Mapping[str, Any]) -> str:
    """Return the checksum of the content: SHA-256 of its JSON form, in hexadecimal."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
