"""Waiters are notified in rounds, and connections resume after them."""

import asyncio

from typing_extensions import override

from trainyard.coordinator.fair_notifier import CALLBACKS_PER_ROUND, FairNotifier


class Connection(asyncio.ReadTransport):
    """A connection that may be paused."""

    def __init__(self, *, closing: bool = False) -> None:
        super().__init__()
        self.reading, self.closing = True, closing

    @override
    def pause_reading(self) -> None:
        self.reading = False

    @override
    def resume_reading(self) -> None:
        if self.closing:
            raise RuntimeError("the handler is closed")
        self.reading = True

    @override
    def is_closing(self) -> bool:
        return self.closing


def waiting(count: int) -> list[asyncio.Future[None]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


async def test_waiters_are_notified_in_order_and_in_rounds() -> None:
    notifier, agents, notified = FairNotifier(), waiting(3 * CALLBACKS_PER_ROUND), list[int]()
    for agent in agents:
        notifier.notify(agent)
    for _ in range(3):
        assert sum(agent.done() for agent in agents) == len(notified) * CALLBACKS_PER_ROUND
        await asyncio.sleep(0)
        notified.append(sum(agent.done() for agent in agents))
        assert all(agent.done() for agent in agents[: notified[-1]])
    assert notified == [CALLBACKS_PER_ROUND, 2 * CALLBACKS_PER_ROUND, 3 * CALLBACKS_PER_ROUND]


async def test_connections_resume_after_all_waiters_are_notified() -> None:
    notifier, connections, agents = (
        FairNotifier(),
        [Connection() for _ in range(CALLBACKS_PER_ROUND + 1)],
        waiting(CALLBACKS_PER_ROUND + 1),
    )
    for connection, agent in zip(connections, agents, strict=True):
        notifier.pause(connection)
        notifier.notify(agent)
    assert not any(connection.reading for connection in connections)
    await asyncio.sleep(0)
    assert not any(connection.reading for connection in connections)
    await asyncio.sleep(0)
    assert all(agent.done() for agent in agents)
    assert [connection.reading for connection in connections] == [True] * (CALLBACKS_PER_ROUND - 1) + [False] * 2
    await asyncio.sleep(0)
    assert all(connection.reading for connection in connections)


async def test_cancelled_waiter_is_skipped() -> None:
    notifier, (gone, there) = FairNotifier(), waiting(2)
    for agent in (gone, there):
        notifier.notify(agent)
    gone.cancel()
    await asyncio.sleep(0)
    assert there.done()


async def test_closed_connection_does_not_block_others() -> None:
    notifier, closed, closes, there = FairNotifier(), Connection(closing=True), Connection(), Connection()
    for connection in (closed, closes, there):
        notifier.pause(connection)
    assert closed.reading
    closes.closing = True
    await asyncio.sleep(0)
    assert (closes.reading, there.reading) == (False, True)
    (agent,) = waiting(1)
    notifier.notify(agent)
    await agent


async def test_later_waiter_is_notified_too() -> None:
    notifier, (first, second) = FairNotifier(), waiting(2)
    notifier.notify(first)
    await first
    notifier.notify(second)
    await second
