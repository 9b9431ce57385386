"""Read byte ranges from a volume or an object store, with retries. Independent of the meaning of the bytes; caches nothing."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, NotImplementedError)
"""The errors of a store that are not retried."""


class ReadError(Exception):
    """A read failed. The message has the URL, the request, the number of attempts and the store's answer."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How failed reads are retried.

    Attributes:
        attempts: the number of attempts, at least 1.
        initial_seconds: the delay before the second attempt. Each later delay doubles.
        max_seconds: the longest delay. The actual delay is random, between half and all of it, so that processes which failed together do not
            retry at the same time.

    Raises:
        ValueError: a number is out of range.
    """

    attempts: int = 6
    initial_seconds: float = 0.5
    max_seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be from 1 on, not {self.attempts}")
        if not 0 <= self.initial_seconds <= self.max_seconds:
            raise ValueError(
                f"initial_seconds must be from 0 to max_seconds ({self.max_seconds} s), not {self.initial_seconds}"
            )

    def delays(self) -> Iterator[float]:
        """Yield the longest delay between two attempts, in seconds."""
        for number in range(self.attempts - 1):
            # Bounded, so that the float does not overflow.
            yield min(self.max_seconds, self.initial_seconds * 2.0 ** min(number, 64))


class RangeReader:
    """A folder or a file from which threads read ranges at the same time.

    It may be copied to another process by fork or pickle. Each process creates its own file system: event loops do not survive a fork.

    Args:
        url: a path, or any URL of fsspec: `s3://bucket/folder`, `https://…`, `memory://…`.
        options: options for fsspec's file system.
        retry: how failed reads are retried.

    Attributes:
        url: the URL without a trailing slash.
        count: the number of reads that this process has started.
        bytes: the number of bytes that they returned.

    Raises:
        ReadError: the URL is invalid, or its file system is not installed.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None, retry: RetryPolicy | None = None) -> None:
        self.url = url.rstrip("/") or "/"
        self.options = dict(options or {})
        self.retry = retry or RetryPolicy()
        self._forget()
        self._connected()

    def _forget(self) -> None:
        self.count = self.bytes = 0
        self._lock = threading.Lock()
        self._made: tuple[int, Any, str] | None = None

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "options": self.options, "retry": self.retry}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def local(self) -> str | None:
        """The path on this machine; None for a remote URL."""
        fs, root = self._connected()
        return root if isinstance(fs, LocalFileSystem) else None

    def at(self, path: str = "") -> str:
        """Return the URL of a file in this folder."""
        return f"{self.url}/{path}" if path else self.url

    def size(self, path: str = "") -> int:
        """Return the size of a file in bytes.

        Raises:
            ReadError: it does not exist, or the store does not report its size.
        """
        found = self._with_retries("the size", path, lambda fs, full: fs.size(full), lambda size: size is not None)
        return int(found)

    def version(self, path: str = "") -> str:
        """Return a version that changes with the content, if the store provides one (an ETag, a time).

        Raises:
            ReadError: the file does not exist, or the store does not answer.
        """
        return str(self._with_retries("the version", path, lambda fs, full: fs.ukey(full), lambda _: True))

    def whole(self, path: str = "") -> bytes:
        """Return all bytes of a file.

        Raises:
            ReadError: it cannot be read.
        """
        content: bytes = self._with_retries("all", path, lambda fs, full: fs.cat_file(full), lambda _: True)
        self._counted(content)
        return content

    def range(self, begin: int, end: int, path: str = "", closed: threading.Event | None = None) -> bytes:
        """Return the bytes from `begin` to `end` (exclusive) of a file, all of them.

        Raises:
            ReadError: the range cannot be read, the file is shorter, or `closed` was set before a retry.
        """
        content: bytes = self._with_retries(
            f"bytes {begin} to {end}", path,
            lambda fs, full: fs.cat_file(full, start=begin, end=end), lambda content: len(content) == end - begin,
            closed,
        )  # fmt: skip
        self._counted(content)
        return content

    def _with_retries(
        self,
        what: str,
        path: str,
        ask: Callable[[Any, str], Any],
        whole: Callable[[Any], bool],
        closed: threading.Event | None = None,
    ) -> Any:
        wait = time.sleep if closed is None else closed.wait
        delays = self.retry.delays()
        for number in range(1, self.retry.attempts + 1):
            try:
                fs, root = self._connected()
                answer = ask(fs, f"{root}/{path}" if path else root)
                if whole(answer):
                    return answer
                answer_text = (
                    "nothing"
                    if answer is None
                    else f"{len(answer)} bytes: the file was cut off or is another one, or its store knows no ranges"
                )
                cause = None
            # Any exception: the errors of botocore and aiohttp have no common base.
            except Exception as error:
                answer_text, cause = f"{type(error).__name__}: {error}", error
                if isinstance(error, FINAL):
                    raise ReadError(f"cannot read {what} of {self.at(path)}: {answer_text}") from error
            delay = next(delays, None)
            if delay is None:
                raise ReadError(
                    f"cannot read {what} of {self.at(path)}: tried {number} times, and the answer was {answer_text}"
                ) from cause
            if wait(delay * random.uniform(0.5, 1.0)):  # noqa: S311 - it guards nothing
                raise ReadError(f"reading of {self.at(path)} was closed after {number} tries: {answer_text}") from cause
        raise AssertionError("the last try has no delay after it")

    def _counted(self, content: bytes) -> None:
        with self._lock:
            self.count += 1
            self.bytes += len(content)

    def _connected(self) -> tuple[Any, str]:
        """Return the file system of this process, and the path in it."""
        made = self._made
        if made is not None and made[0] == os.getpid():
            return made[1:]
        if made is not None:
            # After a fork, a thread of the parent may still hold the lock.
            self._forget()
        if ":" in self.url.partition("/")[0] and "://" not in self.url:
            raise ReadError(f"{self.url}: neither a path nor a URL, which has two slashes, as s3://bucket/folder has")
        try:
            fs, root = fsspec.core.url_to_fs(self.url, **self.options)
        except (ImportError, ValueError, OSError) as error:
            raise ReadError(f"{self.url}: {error}") from error
        self._made = (os.getpid(), fs, root)
        return fs, root
