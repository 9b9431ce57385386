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
from torch.futures import Future
from typing_extensions import override

from trainyard_torch.checkpoint.dcp_metadata import NAME as METADATA, parsed
from trainyard_torch.checkpoint.manifest import File
from trainyard_torch.checkpoint.plain_values import check_torch
from trainyard_torch.checkpoint.writer_process import Run, here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.distributed.checkpoint.metadata import Metadata
    from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
    from torch.distributed.checkpoint.storage import WriteResult

    from trainyard_torch.checkpoint.store import Store


def patch_torch_checkpoint() -> None:
    """Work around faults of torch.distributed.checkpoint in this process.

    torch sends errors of one process to all by pickling the traceback. From Python 3.13 on, tracebacks hold code objects, which cannot be
    pickled: one process raised TypeError, and the others blocked for ever. And torch warns about its own calls, and about a training of one process.

    Raises:
        UnsafeTorchError: this release of torch cannot load files without running code that they bring.
    """
    check_torch(str(torch.__version__))
    copyreg.pickle(FrameSummary, lambda frame: (FrameSummary, (frame.filename, frame.lineno, frame.name)))
    warnings.filterwarnings("ignore", "TypedStorage is deprecated", UserWarning)
    # A training of one process has no process group, and means it.
    warnings.filterwarnings("ignore", "torch.distributed is .*assuming the intent is", UserWarning)


@contextmanager
def without_crc32() -> Iterator[None]:
    """Save without torch's own checksums, which nothing compares: the manifest has better ones. This is an option of the process.

    A `torch.save` of another thread meanwhile lacks them, too. `torch.load` reads both.
    """
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def writer(store: Store, folder: str, check: Callable[[], object], run: Run = here) -> Writer:
    """Return the writer for `dcp.save` in this folder of the store.

    Args:
        store: the store.
        folder: the folder of the checkpoint in it.
        check: is called before each write, and may stop the save by an exception.
        run: where the files of this process are written.
    """
    return Writer(folder, Streams(store, check), run)


class Writer(FileSystemWriter):  # type: ignore[misc]  # torch is there where this runs
    """torch's writer with our store. `streams` records the written files."""

    def __init__(self, folder: str, streams: Streams, run: Run = here) -> None:
        # Each file is synced before its stream is closed: torch would call os.sync() for streams that are no files. And all tensors are in
        # host memory: otherwise torch would open the first GPU in each process, to copy ahead.
        super().__init__(folder, sync_files=False, per_thread_copy_ahead=0)
        self.fs, self.path, self._run = streams, folder, run

    @property
    def streams(self) -> Streams:
        """The streams of this writer."""
        found: Streams = self.fs
        return found

    @override
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if self._run is here:
            return super().write_data(plan, planner)
        values = [planner.resolve_data(item) for item in plan.items]
        results, written = self._run(write_values, self.streams.store, self.path, plan, values)
        self.streams.written.update(written)
        answer: Future[list[WriteResult]] = Future()
        answer.set_result(results)
        return answer


class _Values:
    """What torch's writer asks of a planner, with the values of all items."""

    def __init__(self, plan: SavePlan, values: Sequence[object]) -> None:
        self._values = {item.index: value for item, value in zip(plan.items, values, strict=True)}

    def resolve_data(self, item: WriteItem) -> object:
        """Return the value that is written for this item."""
        return self._values[item.index]


def write_values(
    store: Store, folder: str, plan: SavePlan, values: Sequence[object]
) -> tuple[list[WriteResult], dict[str, File]]:
    """Write the values of a plan's items. Return torch's results, and the files by path. Raises StoreError."""
    out = writer(store, folder, lambda: None)
    with without_crc32():
        results = out.write_data(plan, _Values(plan, values)).value()
    return results, out.streams.written


class Reader(FileSystemReader):  # type: ignore[misc]  # torch is there where this runs
    """The reader for `dcp.load` of one checkpoint, which runs no code that the checkpoint brings.

    Args:
        store: the store.
        folder: the folder of the checkpoint in it.
        files: the verified files of the checkpoint.
        contents: the contents of some of them, which are not read again.
    """

    def __init__(
        self, store: Store, folder: str, files: Mapping[str, File], contents: Mapping[str, bytearray] | None = None
    ) -> None:
        super().__init__(folder)
        known = {f"{folder}/{path}": content for path, content in (contents or {}).items()}
        self.fs, self.path = Streams(store, contents=known), folder
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
        store: the store.
        written: the files that were written through it, by path.
    """

    def __init__(
        self, store: Store, check: Callable[[], object] = lambda: None, contents: Mapping[str, bytearray] | None = None
    ) -> None:
        self.store, self._check, self._contents = store, check, contents or {}
        self.written: dict[str, File] = {}

    @override
    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        place = os.fspath(path)
        if mode == "rb" and place in self._contents:
            yield io.BufferedReader(_Content(self._contents[place]))
            return
        if mode == "rb":
            with self.store.reading(place) as stream:
                yield stream
            return
        digest = hashlib.sha256()
        with self.store.writing(place, digest.update) as stream:
            counted = _Counted(stream, self._check)
            yield counted
            if counted.wrong:
                raise counted.wrong
        self.written[place] = File(counted.tell(), digest.hexdigest())

    @override
    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{os.fspath(path)}/{suffix}"

    @override
    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        old, new = os.fspath(path), os.fspath(new_path)
        self.store.rename(old, new)
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
        return self.store.size(os.fspath(path)) is not None

    @override
    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self.store.remove(os.fspath(path))


class _Content(io.RawIOBase):
    """A seekable stream of bytes in memory, which are not copied as `io.BytesIO` does."""

    def __init__(self, content: bytearray) -> None:
        super().__init__()
        self._content, self._place = memoryview(content), 0

    @override
    def readinto(self, buffer: Any) -> int:
        found = self._content[self._place : self._place + len(buffer)]
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: len(self._content)}[whence]
        self._place = max(0, base + offset)
        return self._place

    @override
    def tell(self) -> int:
        return self._place

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True


class _Counted(io.RawIOBase):
    """A stream for sequential writes, with its size so far. After an error it accepts no more bytes."""

    def __init__(self, stream: Any, check: Callable[[], object]) -> None:
        super().__init__()
        self._stream, self._check = stream, check
        self._size = 0
        self.wrong: Exception | None = None

    @override
    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._size += len(view)
        if self.wrong:
            return len(view)
        try:
            self._check()
            self._stream.write(view)
        except Exception as error:  # noqa: BLE001 - raised after torch's writer, which would replace it by an error of its own
            self.wrong = error
        return len(view)

    @override
    def tell(self) -> int:
        return self._size

    @override
    def writable(self) -> bool:
        return True
