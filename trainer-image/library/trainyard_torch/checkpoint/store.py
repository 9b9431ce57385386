"""The folder of all checkpoints of a job, on a volume or in an object store. Independent of torch.

Files appear atomically: on a volume by a rename after the content is synced to disk, in an object store because puts are atomic.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import stat
import tempfile
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from trainyard_torch.checkpoint.manifest import File
from trainyard_torch.checkpoint.outputs import PARTIAL, LocalOutput, ObjectOutput, Output, sync
from trainyard_torch.checkpoint.timeouts import AHEAD, CHUNK, NoResponseError, Sink, Source, nothing, run_with_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

T = TypeVar("T")


class StoreError(Exception):
    """The store could not be used. The message has the URL, the operation and the store's answer."""


class NoAnswerError(StoreError):
    """An operation of the store timed out. It may still be done later."""


class Store:
    """A folder, which can be pickled. Paths in it have slashes.

    Args:
        url: a path, or any URL of fsspec: `s3://bucket/folder`, `gs://…`, `file:///…`, `memory://…`.
        timeout_seconds: the timeout of one operation: a listing, 16 MiB written, 1 MiB read, or a file closed and synced. None: no timeout.
        options: options for fsspec's file system: `{"endpoint_url": …}`.

    Attributes:
        url: the URL as given, without a user and password: errors and records have it.
        unanswered: the number of operations that timed out.

    Raises:
        StoreError: the URL is invalid, or its file system is not installed. All methods raise it if the store cannot be used, or does
            not answer in time.
        ValueError: timeout_seconds is not positive.
    """

    def __init__(self, url: str, *, timeout_seconds: float | None = None, **options: object) -> None:
        if timeout_seconds is not None and not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be a positive number of seconds, not {timeout_seconds}")
        if not url.strip():
            # fsspec would take it for the root folder, which is lost with the container.
            raise StoreError(
                "the path or URL of the folder is empty: name a folder on a volume, or s3://bucket/folder and the like"
            )
        full = url.rstrip("/") or "/"
        self.url = without_user(full)
        if ":" in url.partition("/")[0] and "://" not in url:
            raise StoreError(f"{self.url}: neither a path nor a URL, which has two slashes, as s3://bucket/folder has")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(full, **options)
        except (ImportError, ValueError, OSError) as error:
            raise StoreError(f"{self.url}: {str(error).replace(full, self.url)}") from None
        self._local = isinstance(self._fs, LocalFileSystem)
        self._timeout_seconds = timeout_seconds
        self.unanswered = 0

    @property
    def in_this_process(self) -> bool:
        """Whether no other process can see the files."""
        return isinstance(self._fs, MemoryFileSystem)

    def at(self, path: str) -> str:
        """Return the URL of a path in the store, for fsspec and torch.distributed.checkpoint."""
        return f"{self.url}/{path}"

    def folders(self, path: str = "") -> list[str]:
        """Return the names of the folders here; [] if the folder does not exist yet."""
        return [name for name, kind in self._listed(path) if kind == "directory"]

    def files(self, path: str = "") -> list[str]:
        """Return the names of the files in a folder, without partial files."""
        return [name for name, kind in self._listed(path) if kind == "file" and PARTIAL not in name]

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist. A pipe or a device counts as an empty file."""

        def content() -> bytes | None:
            return b"" if not stat.S_ISREG(self._mode(path)) else _if_there(lambda: self._fs.cat_file(self._path(path)))

        return self._asked("read", path, content)

    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically. Replaces an existing one."""

        def replace() -> None:
            if not self._local:
                self._fs.pipe_file(self._path(path), content)
                return
            out = self._output(path)
            try:
                out.write(content)
                out.finish()
            except BaseException:
                out.drop()
                raise

        self._asked("write", path, replace)

    @contextmanager
    def reading(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file as a seekable stream."""

        def bound(act: Callable[[], T], meanwhile: Callable[[], object] = nothing) -> T:
            return self._asked("read", path, act, meanwhile)

        with self._storage_errors("read", path), self._opened(path) as stream:
            yield io.BufferedReader(Source(stream, bound), AHEAD)

    @contextmanager
    def writing(self, path: str, observe: Callable[[memoryview], object] = lambda _: None) -> Iterator[IO[bytes]]:
        """Open a stream to write a file. The file appears at the end of the `with`, but not after an exception.

        Args:
            path: the file.
            observe: gets all bytes of the file, each while it is written: a checksum costs no time of its own.
        """

        def bound(act: Callable[[], T], meanwhile: Callable[[], object] = nothing) -> T:
            return self._asked("write", path, act, meanwhile)

        with self._storage_errors("write", path):
            before = self.unanswered
            out = bound(lambda: self._output(path))
            sink = Sink(out.write, bound, observe)
            try:
                yield sink  # type: ignore[misc]  # mypy knows no IO[bytes] that is written here
                sink.finish()
                bound(out.finish)
            except BaseException:
                if self.unanswered > before:
                    out.leave()
                else:
                    with suppress(StoreError):
                        bound(out.drop)
                raise

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield an empty local folder that is removed at the end of the `with`: for files that may be discarded. `take` moves them into the store.

        On a volume it is in the store's folder, so that nothing is copied.
        """
        if not self._local:
            with tempfile.TemporaryDirectory() as made:
                yield Path(made)
            return
        folder = Path(self._root) / f"scratch{PARTIAL}{uuid.uuid4().hex}"
        with self._storage_errors("write", folder.name):
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def take(self, source: Path, path: str) -> None:
        """Move a file of `scratch` into the store atomically. Replaces an existing one."""
        with self._storage_errors("write", path):
            if self._local:
                sync(source)
                target = Path(self._path(path))
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
            else:
                self._fs.put_file(str(source), self._path(path))

    def rename(self, path: str, new: str) -> None:
        """Rename a file. Replaces an existing one."""
        self._asked("write", new, lambda: self._fs.mv(self._path(path), self._path(new)))

    def measure(self, path: str, into: bytearray | None = None, *, expected: int | None = None) -> File | None:
        """Return size and checksum of a file, computed from its content; None if it does not exist.

        Args:
            path: the file.
            into: an array of the expected size, which gets the content.
            expected: the expected size. Of a larger file, such as a link to a device without end, no more than the next part is read.
        """
        digest, size, chunk = hashlib.sha256(), 0, b""
        try:
            with self._opened(path) as stream:
                while True:
                    last = chunk
                    # The checksum of one part is computed while the next one is read.
                    chunk = self._asked("read", path, lambda: stream.read(CHUNK), lambda: digest.update(last))  # noqa: B023 - called at once
                    if not chunk:
                        break
                    if into is not None:
                        memoryview(into)[size : size + len(chunk)] = chunk[: max(0, len(into) - size)]
                    size += len(chunk)
                    if expected is not None and size > expected:
                        break
        except FileNotFoundError:
            return None
        return File(size, digest.hexdigest())

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        found: int | None = self._asked("look at", path, lambda: _if_there(lambda: self._fs.size(self._path(path))))
        return found

    def sync_folder(self, path: str) -> None:
        """Flush the folder entries to disk, so that its files survive a power failure. Object stores need no such call."""

        def all_of_it() -> None:
            folder = Path(self._path(path))
            for each in (folder, *(inner for inner in folder.rglob("*") if inner.is_dir())):
                sync(each)

        if self._local:
            self._asked("write", path, all_of_it)

    def remove(self, path: str) -> None:
        """Remove a folder and its content, if it exists."""
        self._asked("remove", path, lambda: _if_there(lambda: self._fs.rm(self._path(path), recursive=True)))

    def _listed(self, path: str) -> list[tuple[str, str]]:
        here = self._path(path)

        def now() -> list[dict[str, str]]:
            # Files that another process has written meanwhile count.
            self._fs.invalidate_cache()
            return _if_there(lambda: list(self._fs.ls(here, detail=True))) or []

        named = ((each["name"].rstrip("/"), each["type"]) for each in self._asked("list", path, now))
        return [(name.rpartition("/")[2], kind) for name, kind in named if name != here]

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        """Open a file of the file system. Raises FileNotFoundError, too."""
        before = self.unanswered

        def opened() -> Any:
            # To open a pipe waits for a program that writes.
            return None if stat.S_ISFIFO(self._mode(path)) else _if_there(lambda: self._fs.open(self._path(path), "rb"))

        stream = self._asked("read", path, opened)
        if stream is None:
            raise FileNotFoundError(f"there is no {path}")
        try:
            yield stream
        finally:
            if self.unanswered == before:
                with suppress(StoreError):
                    self._asked("read", path, stream.close)

    def _mode(self, path: str) -> int:
        """Return the mode of a file on a volume, which holds its kind. Missing files and objects of a store count as regular files."""
        try:
            return Path(self._path(path)).stat().st_mode if self._local else stat.S_IFREG
        except OSError:
            return stat.S_IFREG

    def _output(self, path: str) -> Output:
        return LocalOutput(Path(self._path(path))) if self._local else ObjectOutput(self._fs, self._path(path))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    def _asked(self, what: str, path: str, act: Callable[[], T], meanwhile: Callable[[], object] = nothing) -> T:
        """Return the store's answer, with a timeout. This thread does `meanwhile` until then."""
        with self._storage_errors(what, path):
            try:
                return run_with_timeout(self._timeout_seconds, act, meanwhile)
            except NoResponseError:
                self.unanswered += 1
                raise NoAnswerError(
                    f"cannot {what} {self.at(path)}: no answer for {self._timeout_seconds:g} s"
                ) from None

    @contextmanager
    def _storage_errors(self, what: str, path: str) -> Iterator[None]:
        """Turn any error of a file system into a StoreError: botocore's errors are no OSError."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"cannot {what} {self.at(path)}: {str(error) or type(error).__name__}") from error


def without_user(url: str) -> str:
    """Return a URL without the user and password before its host."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}" if separator else url


def _if_there(act: Callable[[], T]) -> T | None:
    try:
        return act()
    except FileNotFoundError:
        return None
