"""Read the metadata file of torch.distributed.checkpoint (DCP) as data.

The file is a pickle, and a pickle may name any function to be called. Here it builds records without behaviour, and no object of torch but
types of numbers and sizes. The records are then checked, and turned into torch's classes.
"""

from __future__ import annotations

import math
import pickle
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo  # private, and what torch's reader looks up
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from trainyard_torch.checkpoint.manifest import File

NAME = ".metadata"


class MetadataError(Exception):
    """The metadata of a checkpoint is not what DCP writes. The message says what is in it."""


class _Record:
    """An object of the file: the arguments with which it is made, and its state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        """Take any state. As the class has this method, a pickle cannot set an attribute of the class itself."""
        self.state = state


_METADATA, _STORAGE = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem"
_RECORDS: dict[tuple[str, str], type[_Record]] = {
    place: type(place[1], (_Record,), {})
    for place in (
        *(
            (_METADATA, name)
            for name in (
                "Metadata",
                "MetadataIndex",
                "TensorStorageMetadata",
                "TensorProperties",
                "ChunkStorageMetadata",
                "BytesStorageMetadata",
                "StorageMeta",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        (_STORAGE, "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib._local", "PosixPath"),
    )
}
"""The classes and functions that DCP's pickles name, and the record that stands for each."""


class _Unpickler(pickle.Unpickler):
    @override
    def find_class(self, module: str, name: str, /) -> Any:
        if record := _RECORDS.get((module, name)):
            return record
        found = getattr(torch, name, None) if module == "torch" else None
        if found is torch.Size or isinstance(found, torch.dtype):
            return found
        raise MetadataError(f"{NAME} names {module}.{name}, which no checkpoint holds: it is not loaded")


def parsed(stream: IO[bytes], files: Mapping[str, File]) -> Metadata:
    """Return the metadata, without running code that the file brings.

    Args:
        stream: the content of the file.
        files: the verified files of the checkpoint.

    Raises:
        MetadataError: it names anything else than DCP does, or values that do not fit, or a part of a file that is not in `files`. Or a
            part of an entry is missing.
    """
    try:
        content = _state(_Unpickler(stream).load(), "Metadata")
        entries = {_text(name): _entry(value) for name, value in _items(content["state_dict_metadata"])}
        places = {_index(key): _place(value, files) for key, value in _items(content["storage_data"])}
        mappings = {_text(name): _path(value) for name, value in _items(content.get("planner_data") or {})}
        for name, entry in entries.items():
            _check_parts(name, entry, places)
    except MetadataError:
        raise
    except Exception as error:
        raise MetadataError(f"{NAME} cannot be read: {type(error).__name__}: {error}") from error
    return Metadata(entries, mappings, places)


def _state(value: Any, name: str) -> dict[str, Any]:
    """Return the attributes of a record of this class."""
    found = value.state if isinstance(value, _Record) and type(value).__name__ == name else None
    if not isinstance(found, dict):
        raise MetadataError(f"{NAME} has a {type(value).__name__} in place of a {name}")
    return found


def _items(value: Any) -> Any:
    if not isinstance(value, dict):
        raise MetadataError(f"{NAME} has a {type(value).__name__} in place of a dictionary")
    return value.items()


def _text(value: Any) -> str:
    found: str = _of(value, str)
    return found


def _of(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise MetadataError(f"{NAME} has a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _size(value: Any) -> torch.Size:
    if min(_of(value, torch.Size), default=0) < 0:
        raise MetadataError(f"{NAME} has a negative size or offset: {tuple(value)}")
    return torch.Size(value)


def _path(value: Any) -> tuple[str | int, ...]:
    """Return the path of an entry in nested dictionaries and lists."""
    return tuple(each if type(each) is int else _text(each) for each in _of(value, tuple))


def _entry(value: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    """Return the metadata of one entry of a state dict."""
    if isinstance(value, _RECORDS[_METADATA, "BytesStorageMetadata"]):
        return BytesStorageMetadata()
    state = _state(value, "TensorStorageMetadata")
    chunks = [_state(each, "ChunkStorageMetadata") for each in _of(state["chunks"], list)]
    return TensorStorageMetadata(
        _properties(state["properties"]),
        _size(state["size"]),
        [ChunkStorageMetadata(_size(each["offsets"]), _size(each["sizes"])) for each in chunks],
    )


def _check_parts(
    name: str, entry: TensorStorageMetadata | BytesStorageMetadata, places: Mapping[MetadataIndex, _StorageInfo]
) -> None:
    """Raise MetadataError unless an entry is complete. torch leaves the values of a missing part as they are in memory."""
    indices = [MetadataIndex(name)]
    if isinstance(entry, TensorStorageMetadata):
        values, whole = sum(math.prod(chunk.sizes) for chunk in entry.chunks), math.prod(entry.size)
        if values != whole:
            raise MetadataError(f"{NAME} has parts of {name} with {values} values, and the tensor has {whole}")
        indices = [MetadataIndex(name, chunk.offsets) for chunk in entry.chunks]
    if not places.keys() >= {*indices}:
        raise MetadataError(f"{NAME} does not say in which file all parts of {name} are")


def _properties(value: Any) -> TensorProperties:
    """Return the properties that loading uses. Releases of torch add others at the end, such as strides in 2.15."""
    if not isinstance(value, _RECORDS[_METADATA, "TensorProperties"]):
        raise MetadataError(f"{NAME} has a {type(value).__name__} in place of TensorProperties")
    dtype, _, requires_grad, _, pinned, *_ = value.state
    return TensorProperties(
        dtype=_of(dtype, torch.dtype), requires_grad=_of(requires_grad, bool), pin_memory=_of(pinned, bool)
    )


def _index(value: Any) -> MetadataIndex:
    state = _state(value, "MetadataIndex")
    offset, index = state.get("offset"), state.get("index")
    return MetadataIndex(
        _text(state["fqn"]), None if offset is None else _size(offset), None if index is None else _of(index, int)
    )


def _place(value: Any, files: Mapping[str, File]) -> _StorageInfo:
    """Return where an entry is. Raises MetadataError if that is not within a verified file."""
    state = _state(value, "_StorageInfo")
    path, begin, length = _text(state["relative_path"]), _of(state["offset"], int), _of(state["length"], int)
    file = files.get(path)
    if file is None or not 0 <= begin <= begin + length <= file.size:
        raise MetadataError(f"{NAME} has an entry in bytes {begin} to {begin + length} of {path}: not in the manifest")
    known = {each.name for each in fields(_StorageInfo)} - {"relative_path", "offset", "length"}
    more = {name: [_text(each) for each in state[name]] for name in known if state.get(name) is not None}
    return _StorageInfo(path, begin, length, **more)
