"""This worker from its first attempt to its last. Where there is an operator, a failure does not end it: the ranks are started again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from trainyard_agent.attempt import FAILED, STOP_SECONDS, Attempt, Command, Line, Outcome
from trainyard_agent.group import Group
from trainyard_agent.orders import FIRST_ANSWER_SECONDS, SILENCE_SECONDS, Do, Final, State, decide
from trainyard_agent.ranks import SettingError, grace_seconds
from trainyard_agent.restarts import RESTART_CODE, Restarts
from trainyard_agent.sync import Failure, Sync
from trainyard_agent.warm import Warm
from trainyard_agent.words import PEER_LOST_CODE

LOOK_SECONDS = 1.0
"""How often a worker at rest looks at the clock."""
PREPARED_SECONDS = 60.0
"""A worker that waits for the others tells after so long that it is prepared, whatever its imports do."""
TERMINATED = 143


class End(NamedTuple):
    """Of the worker."""

    code: int
    message: str | None = None
    """What there is to tell of it."""


class Worker:
    """Runs the command for one attempt after the other, in one container."""

    def __init__(
        self,
        command: Command,
        environment: Mapping[str, str],
        group: Group,
        sync: Sync,
        say: Callable[[str], None],
        restarts: Restarts,
    ) -> None:
        self._command, self._inherited, self._group, self._sync, self._say = command, environment, group, sync, say
        self._warm = Warm(command.words, group, say, lambda: sync.on) if sync.on and not command.once else None
        self._attempt, self._grace = (
            restarts.attempt or int(environment["TRAINYARD_ATTEMPT"]),
            grace_seconds(environment),
        )
        self._tellers: set[int] = set()
        self._state = State.RUNNING
        self._since = time.monotonic()
        """When the state began."""
        self._patience = SILENCE_SECONDS
        self._restarts = restarts
        self._refused: object = None
        """The order that could not be carried out, which is said once."""

    def run(self, *, wait: bool) -> End:
        """Until it ends. `wait`: not to begin before the operator says so."""
        failure: Failure | None = None
        environment: Mapping[str, str] | None = self._inherited
        if wait:
            self._state = State.WAITING
            self._new(self._inherited).prepare(delay=False)
            environment = self._wait()
        while environment is not None and not self._group.asked_to_end:
            outcome = self._one(environment)
            if outcome == Outcome():
                return End(0)
            failure = outcome.failure
            if self._group.asked_to_end or not self._sync.on:
                break
            self._clear()
            self._patience = FIRST_ANSWER_SECONDS
            environment = self._wait()
        if self._state is State.RESTARTING:
            return End(RESTART_CODE, f"the container starts anew for attempt {self._attempt}")
        waits, asked = self._state is State.WAITING, self._group.asked_to_end
        if waits and not asked and (why := self._in_vain()):
            return End(PEER_LOST_CODE, f"attempt {self._attempt} was waited for in vain: {why}")
        if failure is None or (waits and asked):
            return End(TERMINATED)
        # Its node would start the container anew.
        code = FAILED if failure.code == RESTART_CODE else failure.code
        return End(code, failure.message if failure.needs_telling else None)

    def _one(self, environment: Mapping[str, str]) -> Outcome:
        attempt = self._new(environment)
        if self._state is not State.RUNNING:
            self._tell(State.RUNNING)
        return attempt.run(
            Line(
                stop=lambda: self._next() in {Do.JOIN, Do.LEAVE},
                failed=lambda failure: None if self._group.asked_to_end else self._tell(State.FAILED, failure),
                leave=lambda leave: self._sync.tell(self._attempt, State.RUNNING, leave=leave),
                news=lambda: self._sync.news(self._since),
            )
        )

    def _new(self, environment: Mapping[str, str]) -> Attempt:
        return Attempt(self._command, environment, self._group, self._say, self._warm, self._tellers)

    def _wait(self) -> Mapping[str, str] | None:
        """Until the ranks are to be started. Returns their environment; None where this worker is to end."""
        while not self._group.asked_to_end:
            if self._state is State.WAITING:
                self._sync.tell(self._attempt, State.WAITING, prepared=self._is_prepared())
            do = self._next()
            order = self._sync.news(self._since).order
            if do is Do.LEAVE:
                return None
            if do is Do.JOIN and order is not None:
                self._attempt = order.attempt
                if order.restart and self._restarts.leave(order.attempt):
                    self._tell(State.RESTARTING)
                    return None
                self._tell(State.WAITING)
            elif do is Do.START and order is not None and order is not self._refused:
                environment = {**self._inherited, **order.environment}
                try:
                    self._new(environment)
                except SettingError as error:
                    self._refused = order
                    self._say(f"attempt {order.attempt} cannot begin as the operator says: {error}")
                else:
                    return environment
            else:
                self._group.wait(LOOK_SECONDS)
        return None

    def _next(self) -> Do:
        news = self._sync.news(self._since)
        patience = SILENCE_SECONDS if news.answered else self._patience
        return decide(self._state, self._attempt, news, patience, self._grace)

    def _in_vain(self) -> str:
        """Why an attempt is waited for no longer, where it may begin without this worker."""
        news = self._sync.news(self._since)
        if news.final is Final.OFF:
            return "the operator cannot be asked"
        return "" if news.final else f"nothing was heard of the operator for {news.silence:.0f} seconds"

    def _is_prepared(self) -> bool:
        """Whether the ranks can be forked, or will be started from the beginning. What takes too long is not waited for."""
        under_way = self._warm is not None and self._warm.under_way
        return not under_way or time.monotonic() - self._since >= PREPARED_SECONDS

    def _tell(self, state: State, failure: Failure | None = None) -> None:
        self._state, self._since = state, time.monotonic()
        self._sync.tell(self._attempt, state, failure, prepared=state is not State.WAITING or self._is_prepared())

    def _clear(self) -> None:
        """Nothing of an attempt runs when the next may begin: not what a rank has left behind either."""
        said = False
        while not self._group.empty and not self._group.asked_to_end:
            self._group.end(signal.SIGKILL, STOP_SECONDS)
            if not said and not self._group.empty:
                said = True
                self._say(
                    "what has run here does not end, so that nothing can begin: it is another user's, or stuck in the kernel"
                )
