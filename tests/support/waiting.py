"""Wait for a condition while the event loop runs."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *, within: float = 30.0) -> None:
    """Let the event loop run until the condition holds. Fails after `within` seconds.

    It sleeps in between: a busy loop would starve the threads of the client.
    """
    try:
        async with asyncio.timeout(within):
            while not condition():  # noqa: ASYNC110 - any state of any object, which has no event to wait for
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError("the condition did not come true in time") from None
