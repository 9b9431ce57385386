"""The folder of all checkpoints of a job, on a volume or in an object store. Knows no torch, and decides nothing.

A file appears whole or not at all: on a volume by a rename after all of it is on the disk, in an object store because that is what they do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
from fsspec.implementations.local import LocalFileSystem

from trainyard_torch.checkpoint.manifest import File

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

CHUNK = 2**22
PARTIAL = ".partial-"
"""In the name of a file that is being written."""


class StoreError(Exception):
    """The store could not be used. The text says where, what was tried, and what it answered."""


class Store:
    """A folder, and what lies below it by paths with slashes.

    Args:
        url: a path, or anything that fsspec knows: `s3://bucket/folder`, `gs://…`, `file:///…`, `memory://…`.
        options: for fsspec's file system: `{"endpoint_url": …}`.

    Raises:
        StoreError: this is no URL, or there is no such file system here.
    """

    def __init__(self, url: str, **options: object) -> None:
        self.url = url.rstrip("/") or "/"
        if ":" in url.partition("/")[0] and "://" not in url:
            raise StoreError(f"{url}: neither a path nor a URL, which has two slashes, as s3://bucket/folder has")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url, **options)
        except (ImportError, ValueError, OSError) as error:
            raise StoreError(f"{url}: {error}") from error
        self._local = isinstance(self._fs, LocalFileSystem)

    def at(self, path: str) -> str:
        """The URL of what lies here, as fsspec and torch.distributed.checkpoint take it."""
        return f"{self.url}/{path}"

    def folders(self, path: str = "") -> list[str]:
        """The names of the folders here; none where nothing is there yet."""
        return [name for name, kind in self._listed(path) if kind == "directory"]

    def files(self, path: str = "") -> list[str]:
        """The names of the files here, without those that are being written."""
        return [name for name, kind in self._listed(path) if kind == "file" and PARTIAL not in name]

    def read(self, path: str) -> bytes | None:
        """The whole of a file, or None where there is none."""
        with self._told("read", path):
            try:
                content: bytes = self._fs.cat_file(self._path(path))
            except FileNotFoundError:
                return None
            return content

    def write(self, path: str, content: bytes) -> None:
        """A file is there with this content, in place of what was there."""
        with self._told("write", path):
            if self._local:
                with _partial(Path(self._path(path))) as file:
                    file.write(content)
            else:
                self._fs.pipe_file(self._path(path), content)

    @contextmanager
    def reading(self, path: str) -> Iterator[IO[bytes]]:
        """A file as a stream in which one can seek."""
        with self._told("read", path), self._fs.open(self._path(path), "rb") as stream:
            yield stream

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        """A stream to write a file by: it is there with the end of the `with`, and not if that ends by an exception."""
        with self._told("write", path):
            if self._local:
                with _partial(Path(self._path(path))) as stream:
                    yield stream
                return
            stream = self._fs.open(self._path(path), "wb")
            try:
                yield stream
            except BaseException:
                # To close it would store what has come so far.
                stream.close = lambda: None
                with suppress(Exception):
                    stream.discard()
                with suppress(Exception):
                    self._fs.rm_file(self._path(path))
                raise
            stream.close()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder on this machine, gone with the end of the `with`: for files of which not all may come to be. `take` brings them in.

        On a volume it lies below this one, so that nothing is copied.
        """
        if not self._local:
            with tempfile.TemporaryDirectory() as made:
                yield Path(made)
            return
        folder = Path(self._root) / f"scratch{PARTIAL}{uuid.uuid4().hex}"
        with self._told("write", folder.name):
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def take(self, source: Path, path: str) -> None:
        """A file of `scratch` is here, in place of what was there, as a whole."""
        with self._told("write", path):
            if self._local:
                _sync(source)
                target = Path(self._path(path))
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
            else:
                self._fs.put_file(str(source), self._path(path))

    def rename(self, path: str, new: str) -> None:
        """A file has another name, in place of what had it before."""
        with self._told("write", new):
            self._fs.mv(self._path(path), self._path(new))

    def measure(self, path: str) -> File | None:
        """The size and the checksum of a file, from its content; None where there is none."""
        digest, size = hashlib.sha256(), 0
        with self._told("read", path):
            try:
                with self._fs.open(self._path(path), "rb") as file:
                    while chunk := file.read(CHUNK):
                        digest.update(chunk)
                        size += len(chunk)
            except FileNotFoundError:
                return None
        return File(size, digest.hexdigest())

    def size(self, path: str) -> int | None:
        """Bytes of a file; None where there is none."""
        with self._told("look at", path):
            try:
                found: int = self._fs.size(self._path(path))
            except FileNotFoundError:
                return None
            return found

    def settle(self, path: str) -> None:
        """That there are these files in a folder outlives a power failure, as the files themselves do. Object stores promise that by themselves."""
        if not self._local:
            return
        with self._told("write", path):
            folder = Path(self._path(path))
            for each in (folder, *(inner for inner in folder.rglob("*") if inner.is_dir())):
                _sync(each)

    def remove(self, path: str) -> None:
        """Nothing lies here any more. Nothing happens where nothing did."""
        with self._told("remove", path):
            try:
                self._fs.rm(self._path(path), recursive=True)
            except FileNotFoundError:
                return

    def _listed(self, path: str) -> list[tuple[str, str]]:
        with self._told("list", path):
            # What another process has written since counts.
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(self._path(path), detail=True)
            except FileNotFoundError:
                return []
            here = self._path(path)
            named = ((each["name"].rstrip("/"), each["type"]) for each in found)
            return [(name.rpartition("/")[2], kind) for name, kind in named if name != here]

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    @contextmanager
    def _told(self, what: str, path: str) -> Iterator[None]:
        """Whatever a file system raises becomes a sentence: botocore's errors are no OSError."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"cannot {what} {self.at(path)}: {str(error) or type(error).__name__}") from error


@contextmanager
def _partial(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}{PARTIAL}{uuid.uuid4().hex}")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
