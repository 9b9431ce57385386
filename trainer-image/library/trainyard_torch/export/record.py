"""The record of an export: provenance of the model, and how to verify that all files are complete. Pure.

The record is written atomically after all other files. A folder without one is no export.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from trainyard_torch.checkpoint.manifest import File, digest

if TYPE_CHECKING:
    from trainyard_torch.checkpoint.manifest import Manifest

FORMAT = 1
NAME = "RECORD.json"
REDACTED = "(redacted)"
SECRET = re.compile(r"token|secret|passw|credential|api[-_]?key|access[-_]?key", re.IGNORECASE)
"""In the names of options whose values are not recorded."""
URL_USER = re.compile(r"(://)[^/@\s]{1,512}@")
RECORD_ARGUMENTS_VARIABLE = "TRAINYARD_RECORD_ARGUMENTS"
"""If it is "0", no command line is recorded."""


class ExportError(Exception):
    """A model could not be exported, or an export could not be read. The message says why, and how to fix it."""


@dataclass(frozen=True)
class Code:
    """The version of the program.

    Attributes:
        commit: the commit of its repository; "" if unknown.
        dirty: whether tracked files differed from the commit; None if unknown.
    """

    commit: str = ""
    dirty: bool | None = None


@dataclass(frozen=True)
class Provenance:
    """The provenance of a model.

    Attributes:
        configuration: its arguments: a mapping, an `argparse.Namespace` or a dataclass. None: those of the command line.
        data: dataset and position: `{"source": "s3://bucket/images", **batches.state()}`. None: taken from the checkpoint.
        metrics: numbers that describe its quality.
        checkpoint: the manifest of the model's checkpoint, as returned by `Checkpoints.load` or `load_weights`.
        checkpoints: the folder of that checkpoint.
        code: the version of the program. None: from TRAINYARD_COMMIT, else from git.
    """

    configuration: Any = None
    data: Mapping[str, Any] | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    checkpoint: Manifest | None = None
    checkpoints: str = ""
    code: Code | None = None

    def origin(self) -> dict[str, Any]:
        """Return the checkpoint section of the record; empty if there is no checkpoint."""
        if self.checkpoint is None:
            return {}
        name = self.checkpoint.name
        return {"folder": self.checkpoints, "name": str(name), "step": name.step, "attempt": name.attempt}


@dataclass(frozen=True)
class Input:
    """An example input that the model was traced with.

    Attributes:
        name: the name of the parameter of `forward`.
        dtype: the type of the tensor, such as float32.
        shape: the shape of the tensor.
        dynamic: dimensions that may have any size, with the name of each.
    """

    name: str
    dtype: str
    shape: Sequence[int]
    dynamic: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """The content of an export.

    Attributes:
        model: the name of its class; "" for an export from a checkpoint, which does not have it.
        parameters: the number of elements of its state.
        weights: SHA-256 of names, types, shapes and values: equal for equal weights, in any file format.
        tied: names that share a tensor, each with the name that holds it.
        inputs: the inputs of the trace; empty without a trace.
        code: the version of the program.
        configuration: the program's arguments.
        data: the data that the model has seen, and its position.
        environment: Python, torch, devices, the image and the job.
        metrics: numbers that describe its quality.
        checkpoint: the checkpoint of the model: folder, name, step and attempt; empty if unknown. `export_checkpoint` adds the key.
        time: the time of the export, in seconds since 1970.
        files: all files of the export except the record itself, by name.
    """

    model: str
    parameters: int
    weights: str
    tied: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[Input] = ()
    code: Code = field(default_factory=Code)
    configuration: Any = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Mapping[str, Any] = field(default_factory=dict)
    time: float = 0.0
    files: Mapping[str, File] = field(default_factory=dict)

    def text(self) -> str:
        """Return the record as JSON with a checksum of its own."""
        content = {"format": FORMAT, **jsonable(self)}
        return json.dumps({**content, "sha256": digest(content)}, indent=1) + "\n"

    def fits(self, other: Record, files: AbstractSet[str]) -> bool:
        """Return whether this is an export of the same weights to the same files, with programs traced in the same way."""
        same = not other.inputs or jsonable(self.inputs) == jsonable(other.inputs)
        return same and self.weights == other.weights and files <= self.files.keys()

    @classmethod
    def parse(cls, text: str | bytes) -> Record:
        """Parse a record.

        Raises:
            ExportError: it is incomplete, was changed, or belongs to a later release.
        """
        try:
            content = json.loads(text)
            stored, made = content.pop("sha256"), content["format"]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ExportError(f"{NAME} cannot be read: it is not valid JSON of this library") from error
        if made != FORMAT:
            raise ExportError(
                f"{NAME} has format {made!r}, and this release reads {FORMAT}: a later one has written it"
            )
        if digest(content) != stored:
            raise ExportError(f"{NAME} was changed after it was written: its checksum is another one")
        del content["format"]
        try:
            return cls(
                **{
                    **content,
                    "code": Code(**content["code"]),
                    "inputs": tuple(Input(**each) for each in content["inputs"]),
                    "files": {name: File(**each) for name, each in content["files"].items()},
                }
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ExportError(f"{NAME} lacks a field, or has one that is not known: {error}") from error


def configured(given: Any, arguments: Sequence[str]) -> Any:
    """Return the record's form of a program's configuration.

    Args:
        given: a mapping, an `argparse.Namespace`, a dataclass, or None.
        arguments: the command line without the program's name; used for None.

    Raises:
        ValueError: the configuration has another type.
    """
    if given is None:
        return {"arguments": redacted(arguments)}
    if isinstance(given, Mapping):
        return jsonable(given)
    if is_dataclass(given) and not isinstance(given, type):
        return jsonable({each.name: getattr(given, each.name) for each in fields(given)})
    try:
        return jsonable(vars(given))
    except TypeError:
        raise ValueError(
            f"configuration must be a mapping, a Namespace or a dataclass, got a {type(given).__name__}"
        ) from None


def redacted(arguments: Sequence[str]) -> list[str]:
    """Return a command line without the values of options whose names speak of secrets."""
    found: list[str] = []
    follows = False
    for each in arguments:
        name, separator, _ = each.partition("=")
        is_secret = bool(SECRET.search(name)) and (bool(separator) or name.startswith("-"))
        if follows and not each.startswith("-"):
            found.append(REDACTED)
        else:
            found.append(f"{name}={REDACTED}" if is_secret and separator else URL_USER.sub(r"\1", each))
        follows = is_secret and not separator
    return found


def jsonable(value: Any) -> Any:
    """Return a value as JSON stores it: anything but a number, text, list or mapping becomes a text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        # JSON has no NaN and no infinity.
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: jsonable(getattr(value, each.name)) for each in fields(value)}
    return str(value)
