"""Report the progress of the ranks to the operator, from a thread of its own: no rank waits for a network."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from trainyard_agent.errors import NoAnswerError
from trainyard_agent.hang import Usual
from trainyard_agent.nccl_network import Network
from trainyard_agent.protocol import rank_report, report_request
from trainyard_agent.rank_records import Programs
from trainyard_agent.report import RankState

FIRST_REPORT_SECONDS = 2.0
"""Before the first report, at most: the workers of a job start at the same moment."""
MAX_RETRY_SECONDS = 60.0
"""Between two tries while the operator is away."""
ANSWER_SECONDS = 5.0
LAST_REPORT_SECONDS = 1.0
"""For each step of the last report, for which the exit of the worker waits."""
LAST_RETRY_SECONDS = 0.5
"""Between two tries of the last report."""
EXIT_SECONDS = 10.0
"""The exit of the worker waits no longer than this for the last report."""
LOGGED_FAILURES = 3
"""After so many failures in a row the operator counts as away: the log says so, and the exit of the worker does not wait."""

IMPORTS = threading.Lock()
"""For imports in threads. Of two at once, Python 3.9 shows the one a module of which the other has run only a part."""


class Reporter:
    """Use it in a `with`. Whatever the operator does or does not do, training continues."""

    def __init__(
        self,
        environment: Mapping[str, str],
        attempt: int,
        look: Callable[[], tuple[Mapping[int, RankState], Mapping[int, Usual]]],
        log: Callable[[str], None],
        warm_bytes: Callable[[], int] = int,
        programs: Callable[[], Programs] = Programs,
        network: Callable[[], Network | None] = lambda: None,
    ) -> None:
        """`look` returns the last state and the usual step time of each rank; `warm_bytes` the memory of the warm start.

        `programs` returns what the programs of the worker are known to do, `network` the network that NCCL took.
        """
        self._environment, self._attempt, self._look, self._log = environment, attempt, look, log
        self._warm_bytes, self._programs, self._network = warm_bytes, programs, network
        self._is_over = self._is_last = False
        self._wake = threading.Event()
        self._stacks: Mapping[int, Sequence[str]] = {}
        self._blocked: Mapping[int, str] = {}
        self._failures = 0
        self._reported: object = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Reporter:  # noqa: PYI034 - Self needs Python 3.11
        if self._environment.get("TRAINYARD_COORDINATOR"):
            self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._wake.set()

    @property
    def is_active(self) -> bool:
        """Whether there is an operator to report to."""
        return self._thread is not None and self._thread.is_alive()

    def report_hang(self, stacks: Mapping[int, Sequence[str]], blocked: Mapping[int, str]) -> None:
        """Report at once where the ranks are. `blocked`: the ranks that cannot answer, with the reason."""
        self._stacks, self._blocked = dict(stacks), dict(blocked)
        self._wake.set()

    def finish(self) -> None:
        """Report the last step too, unless the operator is away: all has gone well."""
        self._is_over = self._is_last = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(0.0 if self._is_away else EXIT_SECONDS)

    @property
    def _is_away(self) -> bool:
        return self._failures >= LOGGED_FAILURES

    def _run(self) -> None:
        try:
            with IMPORTS:
                from trainyard_agent.coordinator import Coordinator  # noqa: PLC0415 - HTTPS takes its time to import, for which no rank is to wait

            operator = Coordinator(self._environment)
        except (ImportError, ValueError) as error:
            self._log(f"cannot report progress to the operator: {error}")
            return
        pause = random.uniform(0, FIRST_REPORT_SECONDS)  # noqa: S311 - no secret
        while True:
            self._wake.wait(pause * random.uniform(0.9, 1.1))  # noqa: S311 - jitter, no secret
            if self._is_over:
                break
            self._wake.clear()
            pause = self._report(operator.report, ANSWER_SECONDS)
        if self._is_last and not self._is_away:
            self._report_last(operator.report)

    def _report_last(self, send: Callable[[Mapping[str, object], float], float]) -> None:
        """Try again after a failure: a process that has just become the leader accepts the report a moment later."""
        self._failures = 0
        self._report(send, LAST_REPORT_SECONDS)
        while 0 < self._failures < LOGGED_FAILURES:
            time.sleep(LAST_RETRY_SECONDS)
            self._report(send, LAST_REPORT_SECONDS)

    def _report(self, send: Callable[[Mapping[str, object], float], float], seconds: float) -> float:
        """Send one report, if there is news. Returns the seconds until the next."""
        states, usual = self._look()
        # The memory is the worker's, and reported once.
        warm, first = self._warm_bytes(), next(iter(states), None)
        ranks = {
            rank: rank_report(
                state,
                usual.get(rank, Usual()),
                self._stacks.get(rank),
                self._blocked.get(rank),
                warm if rank == first else 0,
            )
            for rank, state in states.items()
        }
        seen = self._programs()
        request = report_request(
            self._attempt, ranks, seen.groups, self._network(), seen.torch_processes, seen.preflight_seconds
        )
        if request == self._reported or not (ranks or request.keys() & {"groups", "network", "torch_processes"}):
            return FIRST_REPORT_SECONDS
        try:
            pause = send(request, seconds)
        except NoAnswerError as error:
            self._failures += 1
            if self._failures == LOGGED_FAILURES:
                why = "the last step is not reported" if self._is_last else "training continues"
                self._log(f"cannot report progress to the operator for now; {why}: {error}")
            return max(error.after, min(MAX_RETRY_SECONDS, 2.0**self._failures))
        if self._is_away:
            self._log("reporting progress to the operator again")
        self._failures, self._reported = 0, request
        return pause
