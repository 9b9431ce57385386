"""Ranged reads from a volume or an object store, with retries. Independent of what the bytes mean; caches nothing."""

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
"""What a store would answer again."""


class ReadError(Exception):
    """A read failed. The message holds the URL, the request, the number of attempts and the store's answer."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a read that fails is tried again.

    Attributes:
        attempts: how often in all, from 1 on.
        initial_seconds: seconds before the second try; each further delay is twice the one before.
        max_seconds: seconds that a delay has at most. Of each, between half and all is waited, by chance: a thousand processes that failed together do
                retry at the same time.

    Raises:
        ValueError: a number is out of its range.
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
        """Seconds between the tries, the longest that they may be."""
        for number in range(self.attempts - 1):
            # The exponent is bounded, as a float is.
            yield min(self.max_seconds, self.initial_seconds * 2.0 ** min(number, 64))


class RangeReader:
    """A folder or a file, of which threads read ranges at the same time.

    It may be copied to another process, by fork or by pickle: a file system is made in each (those with an event loop outlive no fork).

    Args:
        url: a path, or anything that fsspec knows: `s3://bucket/folder`, `https://…`, `memory://…`.
        options: for fsspec's file system.
        retry: with a store that fails.

    Attributes:
        url: without a slash at its end.
        count: reads that this process has started.
        bytes: what they brought.

    Raises:
        ReadError: this is no URL, or there is no such file system here.
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
        """The path, where it is one of this machine."""
        fs, root = self._connected()
        return root if isinstance(fs, LocalFileSystem) else None

    def at(self, path: str = "") -> str:
        """The URL of what lies here."""
        return f"{self.url}/{path}" if path else self.url

    def size(self, path: str = "") -> int:
        """Bytes of a file.

        Raises:
            ReadError: it does not exist, or the store does not report its size.
        """
        found = self._with_retries("the size", path, lambda fs, full: fs.size(full), lambda size: size is not None)
        return int(found)

    def version(self, path: str = "") -> str:
        """Return a version that changes with the content, as far as the store provides one (an ETag, a time).

        Raises:
            ReadError: it is not there, or the store does not answer.
        """
        return str(self._with_retries("the version", path, lambda fs, full: fs.ukey(full), lambda _: True))

    def whole(self, path: str = "") -> bytes:
        """All of a file.

        Raises:
            ReadError: it cannot be had.
        """
        content: bytes = self._with_retries("all", path, lambda fs, full: fs.cat_file(full), lambda _: True)
        self._counted(content)
        return content

    def range(self, begin: int, end: int, path: str = "", closed: threading.Event | None = None) -> bytes:
        """Return bytes `begin` to `end` of a file, excluding `end`: all of them, or an error.

        Raises:
            ReadError: it cannot be had, or the file ends before, or `closed` was set while a further try was waited for.
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
            # Any: botocore's and aiohttp's errors have no common base.
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
        """The file system of this process, and where in it."""
        made = self._made
        if made is not None and made[0] == os.getpid():
            return made[1:]
        if made is not None:
            # After a fork: the lock may be one that a thread of the parent held.
            self._forget()
        if ":" in self.url.partition("/")[0] and "://" not in self.url:
            raise ReadError(f"{self.url}: neither a path nor a URL, which has two slashes, as s3://bucket/folder has")
        try:
            fs, root = fsspec.core.url_to_fs(self.url, **self.options)
        except (ImportError, ValueError, OSError) as error:
            raise ReadError(f"{self.url}: {error}") from error
        self._made = (os.getpid(), fs, root)
        return fs, root
