"""Read numbered blocks of bytes once, in threads, and cache them in memory up to a limit. Independent of files and samples."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Read = Callable[[int, threading.Event], bytes]


class ClosedError(Exception):
    """The blocks were closed while a thread waited for one."""


@dataclass
class _Held:
    """The blocks that one process holds."""

    pool: ThreadPoolExecutor
    closed: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    # In order of use, the most recent last.
    blocks: OrderedDict[int, Future[bytes]] = field(default_factory=OrderedDict)
    bytes: int = 0


class Blocks:
    """The blocks in the memory of this process.

    It may be copied to another process by fork or pickle, and starts empty there.

    Args:
        read: reads a block, or raises. It must give up once the event is set. Several threads call it.
        size: returns the bytes of a block before it is read.
        memory: the limit in bytes. Blocks that are being read or used are never evicted.
        threads: the number of blocks that are read at the same time, at least 1.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, read: Read, size: Callable[[int], int], memory: int, threads: int) -> None:
        for name, value, least in (("memory", memory, 0), ("threads", threads, 1)):
            if value < least:
                raise ValueError(f"{name} must be from {least} on, got {value}")
        self._read, self._size, self.memory, self._threads = read, size, memory, threads
        # By process ID: threads and their blocks do not survive a fork.
        self._held: dict[int, _Held] = {}

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": {}}

    def begin(self, numbers: Iterable[int]) -> None:
        """Start to read these blocks without waiting."""
        self._wanted(numbers)

    def get(self, numbers: Iterable[int]) -> dict[int, bytes]:
        """Return these blocks by number.

        Raises:
            ClosedError: `close` was called while waiting.
            Exception: the error of `read`. The next request reads the block again.
        """
        try:
            return {number: future.result() for number, future in self._wanted(numbers).items()}
        except CancelledError:
            raise ClosedError("the data were closed while a block of them was waited for") from None

    def close(self) -> None:
        """Drop all blocks and stop all threads. Later requests start again."""
        if held := self._held.pop(os.getpid(), None):
            held.closed.set()
            held.pool.shutdown(wait=True, cancel_futures=True)

    def _wanted(self, numbers: Iterable[int]) -> dict[int, Future[bytes]]:
        held, wanted = self._here(), {}
        with held.lock:
            for number in dict.fromkeys(numbers):
                future = held.blocks.get(number)
                # A failed block is read again: the store may have recovered. A pending block has not failed.
                if future is None or (future.done() and (future.cancelled() or future.exception())):
                    if future is None:
                        held.bytes += self._size(number)
                    try:
                        future = held.pool.submit(self._read, number, held.closed)
                    except RuntimeError:
                        raise ClosedError("the data were closed while a block of them was asked for") from None
                    held.blocks[number] = future
                held.blocks.move_to_end(number)
                wanted[number] = future
            self._make_room(held, wanted)
        return wanted

    def _make_room(self, held: _Held, wanted: dict[int, Future[bytes]]) -> None:
        for number in list(held.blocks):
            if held.bytes <= self.memory:
                return
            if number not in wanted and held.blocks[number].done():
                del held.blocks[number]
                held.bytes -= self._size(number)

    def _here(self) -> _Held:
        pid = os.getpid()
        # If two threads get here at once, one pool is dropped unused: it starts no thread before its first task.
        return self._held.get(pid) or self._held.setdefault(pid, _Held(self._pool()))

    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix="trainyard-read")
