"""Waiting for something to become true while the event loop does its work."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *, within: float = 30.0) -> None:
    """Let the event loop run until the condition holds. Fails after `within` seconds, which only a failing test waits for.

    It lets go of the processor in between: a loop that spins keeps the client's threads waiting, for seconds on a busy machine.
    """
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 - any state of any object, which has no event to wait for
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError("the condition did not come true in time") from None
