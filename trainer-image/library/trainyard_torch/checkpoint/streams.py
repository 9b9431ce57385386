"""Use torch.distributed.checkpoint with our store: its own file format, with the checksum of each file computed while it is written."""

from __future__ import annotations

import copyreg
import hashlib
import io
import os
import warnings
from contextlib import contextmanager
from traceback import FrameSummary
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemBase, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import StorageMeta
from typing_extensions import override

from trainyard_torch.checkpoint.dcp_metadata import NAME as METADATA, parsed
from trainyard_torch.checkpoint.manifest import File
from trainyard_torch.checkpoint.plain_values import check_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.distributed.checkpoint.metadata import Metadata

    from trainyard_torch.checkpoint.store import Store


def patch_torch_checkpoint() -> None:
    """Work around faults of torch.distributed.checkpoint in this process.

    torch sends errors of one process to all by pickling the traceback. From Python 3.13 on, tracebacks hold code objects, which cannot be
    pickled: one process raised TypeError, and the others blocked for ever. And torch 2.6 warns about its own calls.

    Raises:
        UnsafeTorchError: this release of torch cannot load files without running code that they bring.
    """
    check_torch(str(torch.__version__))
    copyreg.pickle(FrameSummary, lambda frame: (FrameSummary, (frame.filename, frame.lineno, frame.name)))
    warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)


def writer(store: Store, folder: str, check: Callable[[], object]) -> tuple[FileSystemWriter, Streams]:
    """Return the writer for `dcp.save` in this folder of the store, and the streams that record the written files.

    `check` is called before each write, and may stop the save by an exception.
    """
    streams = Streams(store, check)
    # Each file is synced before its stream is closed: torch would call os.sync() for streams that are no files. And all tensors are in
    # host memory: otherwise torch would open the first GPU in each process, to copy ahead.
    made = FileSystemWriter(folder, sync_files=False, per_thread_copy_ahead=0)
    made.fs, made.path = streams, folder
    return made, streams


class Reader(FileSystemReader):  # type: ignore[misc]  # torch is there where this runs
    """The reader for `dcp.load` of one checkpoint, which runs no code that the checkpoint brings.

    Args:
        store: the store.
        folder: the folder of the checkpoint in it.
        files: the verified files of the checkpoint.
    """

    def __init__(self, store: Store, folder: str, files: Mapping[str, File]) -> None:
        super().__init__(folder)
        self.fs, self.path = Streams(store), folder
        self._files = files
        self._metadata: Metadata | None = None

    @override
    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return the metadata; read once. Raises MetadataError if it is not what torch writes."""
        if self._metadata is None:
            with self.fs.create_stream(self.fs.concat_path(self.path, METADATA), "rb") as stream:
                self._metadata = parsed(stream, self._files)
        self._metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return self._metadata


class Streams(FileSystemBase):  # type: ignore[misc]  # torch is there where this runs
    """The store with the interface of torch.distributed.checkpoint. Paths are relative to the store's folder.

    Attributes:
        written: the files that were written through it, by path.
    """

    def __init__(self, store: Store, check: Callable[[], object] = lambda: None) -> None:
        self._store, self._check = store, check
        self.written: dict[str, File] = {}

    @override
    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        place = os.fspath(path)
        if mode == "rb":
            with self._store.reading(place) as stream:
                yield stream
            return
        with self._store.writing(place) as stream:
            measured = _Measured(stream, self._check)
            yield measured
            if measured.wrong:
                raise measured.wrong
        self.written[place] = measured.file

    @override
    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}"

    @override
    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        old, new = os.fspath(path), os.fspath(new_path)
        self._store.rename(old, new)
        self.written[new] = self.written.pop(old)

    @override
    def init_path(self, path: str | os.PathLike[str]) -> str:
        return os.fspath(path)

    @override
    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: a folder appears with its first file."""

    @override
    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    @override
    def exists(self, path: str | os.PathLike[str]) -> bool:
        return self._store.size(os.fspath(path)) is not None

    @override
    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._store.remove(os.fspath(path))


class _Measured(io.RawIOBase):
    """A stream for sequential writes, with its size and checksum so far. After an error it accepts no more bytes."""

    def __init__(self, stream: Any, check: Callable[[], object]) -> None:
        super().__init__()
        self._stream, self._check = stream, check
        self._digest, self._size = hashlib.sha256(), 0
        self.wrong: Exception | None = None

    @property
    def file(self) -> File:
        return File(self._size, self._digest.hexdigest())

    @override
    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._size += len(view)
        if self.wrong:
            return len(view)
        try:
            self._check()
            self._stream.write(view)
            self._digest.update(view)
        except Exception as error:  # noqa: BLE001 - raised after torch's writer, which would replace it by an error of its own
            self.wrong = error
        return len(view)

    @override
    def tell(self) -> int:
        return self._size

    @override
    def writable(self) -> bool:
        return True
