"""A bounded queue of items of many namespaces. Each gets its turn, and none takes the room of another."""

import asyncio
from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Holds up to `size` items. `get` takes one of each namespace in turn.

    Where the queue is full, the namespace with the most items loses its newest one.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._count = 0
        self._queues: OrderedDict[str, deque[Item]] = OrderedDict()
        self._filled = asyncio.Event()
        self._done = asyncio.Event()
        self._done.set()
        self._open = 0

    def put(self, namespace: str, item: Item) -> Item | None:
        """Add an item. Return the one that is dropped for it, which may be itself; None where there is room."""
        dropped: Item | None = None
        if self._count >= self._size:
            longest = max(self._queues, key=lambda name: len(self._queues[name]))
            if len(self._queues[longest]) <= len(self._queues.get(namespace, ())):
                return item
            dropped = self._queues[longest].pop()
            self._count -= 1
            self._open -= 1
        self._queues.setdefault(namespace, deque()).append(item)
        self._count += 1
        self._open += 1
        self._done.clear()
        self._filled.set()
        return dropped

    async def get(self) -> Item:
        """Take the oldest item of the namespace whose turn it is. Wait for one where there is none."""
        while not self._count:
            self._filled.clear()
            await self._filled.wait()
        namespace, queue = self._queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self._queues[namespace] = queue
        self._count -= 1
        return item

    def task_done(self) -> None:
        """Say that an item that `get` returned is dealt with."""
        self._open -= 1
        if not self._open:
            self._done.set()

    async def join(self) -> None:
        """Wait until all items are dealt with."""
        await self._done.wait()
