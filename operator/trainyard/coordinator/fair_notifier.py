"""Takes turns: what thousands of agents are to be told in one moment, and what they answer, in rounds of the event loop, between which all else goes on."""

import asyncio
from collections import deque
from contextlib import suppress

AT_A_TIME = 16
"""In a round. To tell an agent takes a tenth of a millisecond, to hear one about one."""


class Turns:
    """Words come first: an answer to them is of no use before the others have heard theirs."""

    def __init__(self) -> None:
        self._words: deque[asyncio.Future[None]] = deque()
        self._held: deque[asyncio.ReadTransport] = deque()
        self._goes_on = False

    def tell(self, waiting: asyncio.Future[None]) -> None:
        """Have this future's turn come."""
        self._words.append(waiting)
        self._go_on()

    def hold(self, connection: asyncio.ReadTransport) -> None:
        """Hear no more from this connection until its turn comes."""
        if connection.is_closing():
            return
        connection.pause_reading()
        self._held.append(connection)
        self._go_on()

    def _go_on(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        for _ in range(AT_A_TIME):
            if self._words:
                waiting = self._words.popleft()
                if not waiting.done():
                    waiting.set_result(None)
            elif self._held:
                # Of one that has been closed meanwhile, whatever its kind makes of it, no other is to suffer.
                with suppress(Exception):
                    self._held.popleft().resume_reading()
        self._goes_on = False
        if self._words or self._held:
            self._go_on()
