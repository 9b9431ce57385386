"""Turns: what many agents are told at once is told in rounds, between which other work goes on, and before any is heard again."""

import asyncio

from typing_extensions import override

from trainyard.coordinator.fair_notifier import AT_A_TIME, Turns


class Connection(asyncio.ReadTransport):
    """Which may be heard, or not."""

    def __init__(self, *, closing: bool = False) -> None:
        super().__init__()
        self.heard, self.closing = True, closing

    @override
    def pause_reading(self) -> None:
        self.heard = False

    @override
    def resume_reading(self) -> None:
        if self.closing:
            raise RuntimeError("the handler is closed")
        self.heard = True

    @override
    def is_closing(self) -> bool:
        return self.closing


def waiting(count: int) -> list[asyncio.Future[None]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


async def test_all_are_told_in_their_order_and_others_have_their_turn_between() -> None:
    turns, agents, told = Turns(), waiting(3 * AT_A_TIME), list[int]()
    for agent in agents:
        turns.tell(agent)
    for _ in range(3):
        assert sum(agent.done() for agent in agents) == len(told) * AT_A_TIME
        await asyncio.sleep(0)
        told.append(sum(agent.done() for agent in agents))
        assert all(agent.done() for agent in agents[: told[-1]])
    assert told == [AT_A_TIME, 2 * AT_A_TIME, 3 * AT_A_TIME]


async def test_nobody_is_heard_again_before_all_have_been_told() -> None:
    turns, connections, agents = Turns(), [Connection() for _ in range(AT_A_TIME + 1)], waiting(AT_A_TIME + 1)
    for connection, agent in zip(connections, agents, strict=True):
        turns.hold(connection)
        turns.tell(agent)
    assert not any(connection.heard for connection in connections)
    await asyncio.sleep(0)
    assert not any(connection.heard for connection in connections)
    await asyncio.sleep(0)
    assert all(agent.done() for agent in agents)
    assert [connection.heard for connection in connections] == [True] * (AT_A_TIME - 1) + [False] * 2
    await asyncio.sleep(0)
    assert all(connection.heard for connection in connections)


async def test_who_does_not_wait_any_more_is_passed_over() -> None:
    turns, (gone, there) = Turns(), waiting(2)
    for agent in (gone, there):
        turns.tell(agent)
    gone.cancel()
    await asyncio.sleep(0)
    assert there.done()


async def test_a_connection_that_is_closed_holds_up_nobody() -> None:
    turns, closed, closes, there = Turns(), Connection(closing=True), Connection(), Connection()
    for connection in (closed, closes, there):
        turns.hold(connection)
    assert closed.heard
    closes.closing = True
    await asyncio.sleep(0)
    assert (closes.heard, there.heard) == (False, True)
    (agent,) = waiting(1)
    turns.tell(agent)
    await agent


async def test_what_comes_later_has_its_turn_too() -> None:
    turns, (first, second) = Turns(), waiting(2)
    turns.tell(first)
    await first
    turns.tell(second)
    await second
