"""Waiting for something to become true while the event loop does its work. No sleeps: the loop spins."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *, within: float = 5.0) -> None:
    """Let the event loop run until the condition holds. Fails after `within` seconds."""
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 - any state of any object, which has no event to wait for
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError("the condition did not come true in time") from None
