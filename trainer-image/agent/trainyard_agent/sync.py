"""Keeps the operator and this worker of one mind, from a thread of its own: what the worker does goes out at once, orders come in.

Decides nothing. Whatever the operator says, the ranks are not touched from here.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Optional

from trainyard_agent.orders import Final, News, Order, State, read
from trainyard_agent.reporter import IMPORTS, SILENT_FAILURES, NoAnswerError
from trainyard_agent.words import LONGEST

if TYPE_CHECKING:
    from trainyard_agent.channel import Channel
    from trainyard_agent.coordinator import Answer

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0
"""Seconds between two tries while there is no answer."""
QUICK_SECONDS = 1.0
"""An answer that came sooner is not followed by the next question before that, if nothing has changed here."""
LAST_SECONDS = 2.0
"""For the last word, which the end of the worker waits for."""
UNTRUSTED = 5
"""After so many certificates in a row that cannot be verified, the operator is taken for one that cannot be asked until one can."""


class Failure(NamedTuple):
    """Why an attempt has failed here."""

    code: int
    message: str
    at: float
    """When, by the monotonic clock."""
    needs_telling: bool = True
    """Whether there is more to say than the exit code."""


class Leave(NamedTuple):
    """How far this worker is on the way to an end together with all others."""

    leaving: bool = False
    """Whether this worker was asked to end."""
    asked: bool = False
    """Whether the ranks wait for the step before they go on."""
    passed: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The last step that one of them has passed, -1 for none; None where they cannot be had to wait."""
    at: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The step after which they end."""


class Sync:
    """Use it in a `with`. Without an operator in the environment it does nothing."""

    def __init__(
        self,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        wake: Callable[[], object],
        attempt: int,
        state: State,
    ) -> None:
        """`wake` is called, from the thread, when there is news. The last two are what is told first."""
        self._environment, self._say, self._wake = environment, say, wake
        # Who waits for the others tells by itself when it is prepared.
        self._told: tuple[int, State, Failure | None, Leave | None, bool] = (
            attempt,
            state,
            None,
            None,
            state is not State.WAITING,
        )
        self._changed = threading.Event()
        self._channel: Channel | None = None
        self._thread: threading.Thread | None = None
        self._order: Order | None = None
        self._final: Final | None = None
        self._final_at = 0.0
        self._answered = float("-inf")
        self._failures = self._untrusted = 0
        self._over = self._parts = self._said_nonsense = False

    def __enter__(self) -> Sync:  # noqa: PYI034 - Self needs Python 3.11
        if self._environment.get("TRAINYARD_COORDINATOR"):
            self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
            self._thread.start()
        else:
            self._final = Final.OFF
        return self

    def __exit__(self, *_: object) -> None:
        waits = self._channel is not None and self._channel.waits
        # Who says good-bye is not missed.
        self._parts = self._final is None and (waits or self._answered > float("-inf"))
        self._over = True
        self._interrupt()
        if self._thread is not None and self._parts:
            self._thread.join(LAST_SECONDS)

    @property
    def on(self) -> bool:
        """Whether the operator can still be asked."""
        return self._last_word is None

    @property
    def _last_word(self) -> Final | None:
        return self._final or (Final.OFF if self._untrusted >= UNTRUSTED else None)

    def tell(
        self,
        attempt: int,
        state: State,
        failure: Failure | None = None,
        leave: Leave | None = None,
        *,
        prepared: bool = True,
    ) -> None:
        """From now on this is so. It goes out at once. `leave`: where the ranks can come to an end together with all others;
        `prepared`: whether all that the ranks' start can be spared is done.
        """
        if self._told != (attempt, state, failure, leave, prepared):
            self._told = attempt, state, failure, leave, prepared
            self._interrupt()

    def news(self, since: float) -> News:
        """What is known of the operator. `since`: when it began to be waited for."""
        now = time.monotonic()
        answered = self._answered > float("-inf")
        # One that takes questions and has never answered any is no operator that is waited for, time and again.
        held = self._channel is not None and self._channel.waits and (answered or self._failures == 0)
        silence = 0.0 if held else now - max(since, self._answered)
        return News(self._order, self._last_word, answered, silence, now - self._final_at if self._final else 0.0)

    def _interrupt(self) -> None:
        if self._channel is not None:
            self._channel.call_back()
        self._changed.set()

    def _run(self) -> None:
        try:
            # HTTPS takes its time to import, for which no rank is to wait.
            with IMPORTS:
                from trainyard_agent.channel import Channel  # noqa: PLC0415 - see above
                from trainyard_agent.coordinator import Coordinator  # noqa: PLC0415 - likewise

            channel = self._channel = Channel(Coordinator(self._environment))
        except (ImportError, ValueError) as error:
            self._say(f"a failure ends this worker, since the operator cannot be asked: {error}")
            self._end(Final.OFF)
            return
        try:
            while not self._over and self._final is None:
                self._ask(channel)
            if self._parts:
                with suppress(Exception):
                    last = State.RESTARTING if self._told[1] is State.RESTARTING else State.ENDED
                    channel.ask(lambda: {"attempt": self._told[0], "state": last.value})
        finally:
            channel.close()

    def _ask(self, channel: Channel) -> None:
        # Before the question is put: a change from here on ends the pause after it.
        self._changed.clear()
        if self._over:
            return
        began, pause = time.monotonic(), 0.0
        try:
            self._hear(channel.ask(self._words))
            pause = began + QUICK_SECONDS - time.monotonic()
        except (NoAnswerError, ValueError) as error:
            pause = self._no_answer(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next try may do better, and without this thread nothing would
            if not self._is_called_back(error):
                pause = self._no_answer(error)
        if pause > 0:
            self._changed.wait(pause)

    @staticmethod
    def _is_called_back(error: Exception) -> bool:
        from trainyard_agent.channel import CalledBackError  # noqa: PLC0415 - see above

        return isinstance(error, CalledBackError)

    def _words(self) -> dict[str, object]:
        # Asked for once there is a connection.
        self._untrusted = 0
        attempt, state, failure, leave, prepared = self._told
        words: dict[str, object] = {"attempt": attempt, "state": state.value}
        if failure is not None:
            age = round(max(0.0, time.monotonic() - failure.at), 3)
            words["failure"] = {"code": failure.code, "message": failure.message[:LONGEST], "age": age}
        if leave is not None:
            words["leave"] = leave._asdict()
        if not prepared:
            words["prepared"] = False
        return words

    def _hear(self, answer: Answer) -> None:
        if answer.status == HTTPStatus.NOT_FOUND:
            self._end(Final.OFF)
            return
        if answer.status != HTTPStatus.OK:
            final = next((each for each in (Final.REPLACED, Final.OVER) if each.value == answer.reason), None)
            if final is None or not HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise NoAnswerError(answer.why)
            self._end(final)
            return
        order = read(answer.said)
        if self._failures >= SILENT_FAILURES:
            self._say("the operator answers again")
        self._failures, self._answered = 0, time.monotonic()
        if order != self._order:
            self._order = order
            self._wake()

    def _end(self, final: Final) -> None:
        # In this order: the other thread takes a time without a word for none.
        self._final_at = time.monotonic()
        self._final = final
        self._wake()

    def _no_answer(self, error: Exception) -> float:
        """Returns the seconds until the next try."""
        from trainyard_agent.channel import UntrustedError  # noqa: PLC0415 - see above

        self._failures += 1
        self._untrusted = self._untrusted + 1 if isinstance(error, UntrustedError) else 0
        if self._untrusted == UNTRUSTED:
            self._say(
                f"a failure ends this worker, since the operator's certificate is of no authority that it knows: {error}"
            )
            self._wake()
        elif isinstance(error, ValueError) and not self._said_nonsense:
            self._said_nonsense = True
            self._say(f"the operator's answer makes no sense, and nothing follows from it: {error}")
        elif self._failures == SILENT_FAILURES:
            self._say(f"the operator gives no orders for now; the ranks are left as they are: {error}")
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures - 1, 10))
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
