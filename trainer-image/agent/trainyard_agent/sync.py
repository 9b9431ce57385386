"""Keep the operator and this worker in sync, from a thread of its own: state changes go out at once, orders come in.

Decides nothing. Whatever the operator answers, the ranks are not touched from here.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, Optional

from trainyard_agent.errors import CalledBackError, NoAnswerError, UntrustedError
from trainyard_agent.operator_link import Failure
from trainyard_agent.orders import Final, OperatorView
from trainyard_agent.protocol import AgentState, Order, StopProgress, parse_order, sync_request
from trainyard_agent.reporter import IMPORTS, LOGGED_FAILURES

if TYPE_CHECKING:
    from trainyard_agent.channel import Channel
    from trainyard_agent.coordinator import Answer

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 5.0
"""Between two tries while there is no answer."""
MIN_INTERVAL_SECONDS = 1.0
"""Between two requests, where the answer came sooner and nothing has changed here."""
LAST_REQUEST_SECONDS = 2.0
"""For the last request, for which the exit of the worker waits."""
MAX_UNTRUSTED = 5
"""After so many certificates in a row that cannot be verified, the operator counts as one that cannot be asked."""


class _Reported(NamedTuple):
    """What the agent reports about this worker."""

    attempt: int
    state: AgentState
    failure: Optional[Failure] = None  # noqa: UP045 - Python 3.9
    stop: Optional[StopProgress] = None  # noqa: UP045 - Python 3.9
    prepared: bool = True


class Sync:
    """Use it in a `with`. Without an operator in the environment it does nothing."""

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Callable[[str], None],
        wake: Callable[[], object],
        attempt: int,
        state: AgentState,
    ) -> None:
        """`wake` is called from the thread when there is news. `attempt` and `state` are reported first."""
        self._environment, self._log, self._wake = environment, log, wake
        # A worker that waits for the others reports that it is prepared by itself.
        self._reported = _Reported(attempt, state, prepared=state is not AgentState.WAITING)
        self._changed = threading.Event()
        self._channel: Channel | None = None
        self._thread: threading.Thread | None = None
        self._order: Order | None = None
        self._idle, self._stacks = False, ""
        self._final: Final | None = None
        self._final_at = 0.0
        self._answered_at = float("-inf")
        self._failures = self._untrusted = 0
        self._is_over = self._says_goodbye = self._logged_malformed = False

    def __enter__(self) -> Sync:  # noqa: PYI034 - Self needs Python 3.11
        if self._environment.get("TRAINYARD_COORDINATOR"):
            self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
            self._thread.start()
        else:
            self._final = Final.OFF
        return self

    def __exit__(self, *_: object) -> None:
        pending = self._channel is not None and self._channel.is_pending
        # An agent that reports its exit is not missed.
        self._says_goodbye = self._final is None and (pending or self._answered_at > float("-inf"))
        self._is_over = True
        self._interrupt()
        if self._thread is not None and self._says_goodbye:
            self._thread.join(LAST_REQUEST_SECONDS)

    @property
    def is_active(self) -> bool:
        """Whether the operator can still be asked."""
        return self._final_answer is None

    @property
    def _final_answer(self) -> Final | None:
        return self._final or (Final.OFF if self._untrusted >= MAX_UNTRUSTED else None)

    def report(
        self,
        attempt: int,
        state: AgentState,
        failure: Failure | None = None,
        stop: StopProgress | None = None,
        *,
        prepared: bool = True,
    ) -> None:
        """Report this from now on, and at once.

        `stop`: where the ranks can take part in a coordinated stop. `prepared`: whether the start of the ranks is
        prepared as far as it can be.
        """
        new = _Reported(attempt, state, failure, stop, prepared)
        if self._reported != new:
            self._reported = new
            self._interrupt()

    def report_idle(self, idle: bool) -> None:  # noqa: FBT001 - it is all that is reported
        """Report whether the ranks do anything."""
        if self._idle != idle:
            self._idle = idle
            self._interrupt()

    def pending_stacks(self) -> str:
        """Return the request for the ranks' stacks that is yet to be met; empty where there is none."""
        order = self._order
        return order.stacks if order is not None and order.stacks != self._stacks else ""

    def report_stacks(self, request: str) -> None:
        """Report that this request was met."""
        self._stacks = request
        self._interrupt()

    def view(self, since: float) -> OperatorView:
        """Return what is known of the operator. `since`: when the worker started to wait for it."""
        now = time.monotonic()
        answered = self._answered_at > float("-inf")
        # An operator that takes requests and has never answered any is not waited for again and again.
        is_held = self._channel is not None and self._channel.is_pending and (answered or self._failures == 0)
        silence = 0.0 if is_held else now - max(since, self._answered_at)
        final_for = now - self._final_at if self._final else 0.0
        return OperatorView(self._order, self._final_answer, answered, silence, final_for)

    def _interrupt(self) -> None:
        if self._channel is not None:
            self._channel.call_back()
        self._changed.set()

    def _run(self) -> None:
        try:
            # HTTPS takes its time to import, for which no rank is to wait.
            with IMPORTS:
                from trainyard_agent.channel import Channel  # noqa: PLC0415 - see above
                from trainyard_agent.coordinator import Coordinator  # noqa: PLC0415 - imported on first use

            channel = self._channel = Channel(Coordinator(self._environment))
        except (ImportError, ValueError) as error:
            self._log(f"disabled in-place restart: cannot ask the operator: {error}")
            self._finish(Final.OFF)
            return
        try:
            while not self._is_over and self._final is None:
                self._ask(channel)
            if self._says_goodbye:
                with suppress(Exception):
                    attempt, state = self._reported.attempt, self._reported.state
                    last = state if state is AgentState.RESTARTING else AgentState.ENDED
                    channel.ask(lambda: sync_request(attempt, last))
        finally:
            channel.close()

    def _ask(self, channel: Channel) -> None:
        # Before the request is sent: a change from here on ends the pause after it.
        self._changed.clear()
        if self._is_over:
            return
        began, pause = time.monotonic(), 0.0
        try:
            self._receive(channel.ask(self._body))
            pause = began + MIN_INTERVAL_SECONDS - time.monotonic()
        except CalledBackError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the next try may do better, and without this thread nothing would
            pause = self._retry_pause(error)
        if pause > 0:
            self._changed.wait(pause)

    def _body(self) -> dict[str, object]:
        # Asked for once there is a connection.
        self._untrusted = 0
        attempt, state, failure, stop, prepared = self._reported
        failed = None if failure is None else (failure.code, failure.message, time.monotonic() - failure.at)
        return sync_request(attempt, state, failed, stop, prepared=prepared, idle=self._idle, stacks=self._stacks)

    def _receive(self, answer: Answer) -> None:
        if answer.status == HTTPStatus.NOT_FOUND:
            self._finish(Final.OFF)
            return
        if answer.status != HTTPStatus.OK:
            final = next((each for each in (Final.REPLACED, Final.OVER) if each.value == answer.reason), None)
            if final is None or not HTTPStatus.BAD_REQUEST <= answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise NoAnswerError(answer.text, answer.after)
            self._finish(final)
            return
        order = parse_order(answer.body)
        if self._failures >= LOGGED_FAILURES:
            self._log("the operator answers again")
        self._failures, self._answered_at = 0, time.monotonic()
        if order != self._order:
            self._order = order
            self._wake()

    def _finish(self, final: Final) -> None:
        # In this order: the other thread takes a missing time for "no final answer".
        self._final_at = time.monotonic()
        self._final = final
        self._wake()

    def _retry_pause(self, error: Exception) -> float:
        """Log the error where it is worth a line. Returns the seconds until the next try."""
        self._failures += 1
        self._untrusted = self._untrusted + 1 if isinstance(error, UntrustedError) else 0
        if self._untrusted == MAX_UNTRUSTED:
            self._log(f"disabled in-place restart: operator certificate signed by unknown authority: {error}")
            self._wake()
        elif isinstance(error, ValueError) and not self._logged_malformed:
            self._logged_malformed = True
            self._log(f"ignoring malformed response of the operator: {error}")
        elif self._failures == LOGGED_FAILURES:
            self._log(f"the operator does not answer; the ranks keep running: {error}")
        pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 10))
        asked_for = error.after if isinstance(error, NoAnswerError) else 0.0
        return max(asked_for, pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
