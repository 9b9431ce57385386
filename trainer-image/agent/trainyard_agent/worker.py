"""Run this worker from its first attempt to its last. Where there is an operator, the ranks are restarted after a failure."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from trainyard_agent.attempt import FAILED_CODE, Attempt, Command, Outcome
from trainyard_agent.container_restart import RESTART_CODE, ContainerRestart
from trainyard_agent.exit_cause import PEER_LOST_CODE
from trainyard_agent.group import STOP_SECONDS, Group
from trainyard_agent.operator_link import Failure, OperatorLink
from trainyard_agent.orders import FIRST_ANSWER_SECONDS, SILENCE_SECONDS, Final, NextAction, next_action
from trainyard_agent.preflight import SECONDS_VARIABLE, preflight_command, read_seconds
from trainyard_agent.probe_state import ProbeState
from trainyard_agent.protocol import AgentState, Order
from trainyard_agent.ranks import SettingError, grace_seconds
from trainyard_agent.shared_memory import remove_leftovers
from trainyard_agent.signalling import TERMINATED_CODE
from trainyard_agent.spawn import has_input
from trainyard_agent.sync import Sync
from trainyard_agent.termination_message import Kind, Termination, write
from trainyard_agent.warm_start import WarmStart

LOOK_SECONDS = 1.0
"""How often an idle worker looks at the clock."""
PREPARED_SECONDS = 60.0
"""A worker that waits for the others reports after so long that it is prepared, whatever its imports do."""


class WorkerExit(NamedTuple):
    """How the worker exits."""

    code: int
    message: Optional[str] = None  # noqa: UP045 - Python 3.9
    """The termination message; None: the end of the log is the better one."""


class Worker:
    """Runs the command for one attempt after the other, in one container."""

    def __init__(
        self,
        command: Command,
        environment: Mapping[str, str],
        group: Group,
        sync: Sync,
        log: Callable[[str], None],
        restarts: ContainerRestart,
        probes: ProbeState,
    ) -> None:
        self._command, self._inherited, self._group, self._sync, self._log = command, environment, group, sync, log
        # A process that was forked from another one has no standard input.
        can_prepare = sync.is_active and not command.starts_ranks and not command.deepspeed and not has_input()
        self._warm = WarmStart(command.words, group, log, lambda: sync.is_active) if can_prepare else None
        self._attempt = restarts.attempt or int(environment["TRAINYARD_ATTEMPT"])
        self._grace = grace_seconds(environment)
        # The node starts the container again, and the others go on.
        self._restarts_alone = environment.get("TRAINYARD_RESTARTS_ALONE") == "1"
        self._reporting_ranks: set[int] = set()
        self._state = AgentState.RUNNING
        self._since = time.monotonic()
        """When the state began."""
        self._patience = SILENCE_SECONDS
        self._restarts, self._probes = restarts, probes
        self._secret = ""
        """That of the attempt, which no process has in its environment."""
        self._rejected: Order | None = None
        """The order that could not be carried out, which is logged once."""

    def run(self, *, wait: bool) -> WorkerExit:
        """Run until the worker exits. `wait`: do not start the ranks before the operator orders it."""
        failure: Failure | None = None
        environment: Mapping[str, str] | None = self._inherited
        if wait:
            self._probes.hold()
            self._state = AgentState.WAITING
            if self._warm is not None:
                self._new_attempt(self._inherited).prepare(delay=False)
            environment = self._await_start()
        while environment is not None and not self._group.is_terminating:
            outcome = self._run_attempt(environment)
            if outcome.is_done:
                return WorkerExit(0, outcome.note)
            failure = outcome.failure
            restarts_alone = self._restarts_alone and failure is not None
            if self._group.is_terminating or not self._sync.is_active or restarts_alone:
                break
            self._clear()
            self._patience = FIRST_ANSWER_SECONDS
            environment = self._await_start()
        return self._exit(failure)

    def _exit(self, failure: Failure | None) -> WorkerExit:
        if self._state is AgentState.RESTARTING:
            text = f"the container restarts for attempt {self._attempt}"
            return WorkerExit(RESTART_CODE, write(Termination(Kind.RESTARTING, exit_code=RESTART_CODE), text))
        is_waiting, is_terminating = self._state is AgentState.WAITING, self._group.is_terminating
        if is_waiting and not is_terminating and (why := self._abandoned()):
            text = f"attempt {self._attempt} was not started: {why}"
            data = Termination(Kind.ABANDONED, exit_code=PEER_LOST_CODE, peer_lost=True)
            return WorkerExit(PEER_LOST_CODE, write(data, text))
        if failure is None or (is_waiting and is_terminating):
            return WorkerExit(TERMINATED_CODE)
        # Its node would restart the container.
        code = FAILED_CODE if failure.code == RESTART_CODE else failure.code
        return WorkerExit(code, failure.message if failure.is_worth_writing else None)

    def _run_attempt(self, environment: Mapping[str, str]) -> Outcome:
        compare = preflight_command(self._command.words, environment)
        if self._attempt > 1:
            # One log holds all attempts of a container.
            self._log(f"starting ranks attempt={self._attempt}")
        if self._state is not AgentState.RUNNING:
            self._set_state(AgentState.RUNNING)
        self._probes.begin()
        link = OperatorLink(
            must_stop=self._must_stop,
            report_failure=self._report_failure,
            report_stop=lambda stop: self._sync.report(self._attempt, AgentState.RUNNING, stop=stop),
            report_idle=self._sync.report_idle,
            pending_stacks=self._sync.pending_stacks,
            report_stacks=self._sync.report_stacks,
            view=lambda: self._sync.view(self._since),
        )
        attempt = self._new_attempt(environment)
        if compare:
            outcome, attempt.preflight_seconds = self._compare_nodes(compare, environment, link)
            if not outcome.is_done or self._group.is_terminating:
                return outcome._replace(stopped=outcome.stopped or outcome.is_done)
        return attempt.run(link)

    def _compare_nodes(
        self, words: Sequence[str], environment: Mapping[str, str], link: OperatorLink
    ) -> tuple[Outcome, Optional[float]]:  # noqa: UP045 - Python 3.9
        """Run the comparison of nodes as an attempt of its own. Returns how it ended, and how many seconds it took."""
        self._log("comparing the nodes of the group before training starts")
        with tempfile.TemporaryDirectory(prefix="trainyard-preflight-") as folder:
            file = Path(folder, "seconds")
            variables = {**environment, SECONDS_VARIABLE: str(file)}
            outcome = Attempt(Command(words, starts_ranks=False), variables, self._group, self._log).run(link)
            return outcome, read_seconds(file)

    def _must_stop(self) -> bool:
        if self._next_action() not in {NextAction.JOIN, NextAction.EXIT}:
            return False
        self._probes.hold()
        return True

    def _report_failure(self, failure: Failure) -> None:
        if not (self._group.is_terminating or self._restarts_alone):
            self._set_state(AgentState.FAILED, failure)

    def _new_attempt(self, environment: Mapping[str, str]) -> Attempt:
        return Attempt(
            self._command, environment, self._group, self._log, self._warm, self._reporting_ranks, self._secret
        )

    def _await_start(self) -> Mapping[str, str] | None:
        """Wait until the ranks have to be started. Returns their environment; None where this worker has to exit."""
        while not self._group.is_terminating:
            if self._state is AgentState.WAITING:
                self._sync.report(self._attempt, AgentState.WAITING, prepared=self._is_prepared())
            action = self._next_action()
            order = self._sync.view(self._since).order
            if action is NextAction.EXIT:
                return None
            if action is NextAction.JOIN and order is not None:
                self._attempt = order.attempt
                if order.restart and self._restarts.leave_mark(order.attempt):
                    self._set_state(AgentState.RESTARTING)
                    return None
                self._set_state(AgentState.WAITING)
            elif action is NextAction.START and order is not None and order is not self._rejected:
                if (environment := self._accept(order)) is not None:
                    return environment
            else:
                self._group.wait(LOOK_SECONDS)
        return None

    def _accept(self, order: Order) -> Mapping[str, str] | None:
        """Return the environment of the ordered attempt; None, and a line in the log, where it makes no sense."""
        environment, self._secret = {**self._inherited, **order.environment}, order.secret
        try:
            self._new_attempt(environment)
            preflight_command(self._command.words, environment)
        except SettingError as error:
            self._rejected = order
            self._log(f"cannot start attempt {order.attempt} as ordered: {error}")
            return None
        return environment

    def _next_action(self) -> NextAction:
        view = self._sync.view(self._since)
        patience = SILENCE_SECONDS if view.answered else self._patience
        return next_action(self._state, self._attempt, view, patience, self._grace)

    def _abandoned(self) -> str:
        """Return why the worker waits no longer for an attempt that may start without it; empty where it does not wait in vain."""
        view = self._sync.view(self._since)
        if view.final is Final.OFF:
            return "the operator cannot be asked"
        return "" if view.final else f"the operator did not answer for {view.silence:.0f} seconds"

    def _is_prepared(self) -> bool:
        """Return whether the ranks can be forked, or will be started without preparation. What takes too long is not waited for."""
        is_preparing = self._warm is not None and self._warm.is_preparing
        return not is_preparing or time.monotonic() - self._since >= PREPARED_SECONDS

    def _set_state(self, state: AgentState, failure: Failure | None = None) -> None:
        self._state, self._since = state, time.monotonic()
        if state is not AgentState.RUNNING:
            self._probes.hold()
        prepared = state is not AgentState.WAITING or self._is_prepared()
        self._sync.report(self._attempt, state, failure, prepared=prepared)

    def _clear(self) -> None:
        """Kill what an attempt has left behind: nothing of it may run when the next one starts."""
        logged = False
        while not self._group.is_empty and not self._group.is_terminating:
            self._group.stop(signal.SIGKILL, STOP_SECONDS)
            if not logged and not self._group.is_empty:
                logged = True
                self._log(
                    "cannot start the next attempt: processes of this one do not exit, as another user's or blocked in the kernel"
                )
        if removed := remove_leftovers():
            self._log(f"removed files in shared memory that ranks had left behind files={removed}")
