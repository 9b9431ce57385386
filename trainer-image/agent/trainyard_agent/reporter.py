"""Tells the operator how far the ranks are, from a thread of its own: the ranks are not to wait for a network."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainyard_agent.hang import Usual
from trainyard_agent.report import Said

FIRST_SECONDS = 2.0
"""Before the first report, at most: the workers of a job begin at the same moment."""
LONGEST_SECONDS = 60.0
"""Between two tries while the operator is away."""
ANSWER_SECONDS = 5.0
LAST_SECONDS = 1.0
"""For the last report, which the end of the worker waits for."""
LARGEST, MOST = 1e100, 2**53
"""What the operator takes for a loss, and for a step."""
FRAMES, LONGEST_FRAME = 4, 200
"""Of a stack, the innermost, and characters of each: what a reader looks at first."""
SILENT_FAILURES = 3
"""So many reports may fail in a row before it is worth a line in the log."""

IMPORTS = threading.Lock()
"""For imports in threads. Of two at once, Python 3.9 shows the one a module of which the other has run only a part."""


class NoAnswerError(Exception):
    """The report was not taken; the message says why."""


class Reporter:
    """Use it in a `with`. Whatever the operator does or does not do, training goes on."""

    def __init__(
        self,
        environment: Mapping[str, str],
        attempt: int,
        look: Callable[[], tuple[Mapping[int, Said], Mapping[int, Usual]]],
        say: Callable[[str], None],
        warm: Callable[[], int] = int,
    ) -> None:
        """`look` gives what the ranks have told last, and what their steps take as a rule; `warm` the bytes that it takes to start them anew."""
        self._environment, self._attempt, self._look, self._say, self._warm = environment, attempt, look, say, warm
        self._over = self._last = False
        self._wake = threading.Event()
        self._stacks: Mapping[int, Sequence[str]] = {}
        self._failures = 0
        self._told: object = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Reporter:  # noqa: PYI034 - Self needs Python 3.11
        if self._environment.get("TRAINYARD_COORDINATOR"):
            self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._wake.set()

    @property
    def on(self) -> bool:
        """Whether there is an operator to tell."""
        return self._thread is not None and self._thread.is_alive()

    def hang(self, stacks: Mapping[int, Sequence[str]]) -> None:
        """Tell at once where the ranks stand."""
        self._stacks = {rank: [frame[:LONGEST_FRAME] for frame in frames[:FRAMES]] for rank, frames in stacks.items()}
        self._wake.set()

    def finish(self) -> None:
        """All has gone well: tell the last step too, if the operator was there lately."""
        self._over = self._last = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(2 * LAST_SECONDS + ANSWER_SECONDS if self._failures == 0 else 0.0)

    def _run(self) -> None:
        try:
            with IMPORTS:
                from trainyard_agent.coordinator import Coordinator  # noqa: PLC0415 - HTTPS takes its time to import, for which no rank is to wait

            operator = Coordinator(self._environment)
        except (ImportError, ValueError) as error:
            self._say(f"the operator is not told of the ranks' progress: {error}")
            return
        pause = random.uniform(0, FIRST_SECONDS)  # noqa: S311 - no secret
        while True:
            self._wake.wait(pause * random.uniform(0.9, 1.1))  # noqa: S311 - likewise
            if self._over:
                break
            self._wake.clear()
            pause = self._report(operator.report, ANSWER_SECONDS)
        if self._last and self._failures == 0:
            self._report(operator.report, LAST_SECONDS)

    def _report(self, report: Callable[[Mapping[str, object], float], float], seconds: float) -> float:
        """One report, if there is news. Returns the seconds until the next."""
        said, usual = self._look()
        ranks = {
            str(rank): _words(words, usual.get(rank, Usual()), self._stacks.get(rank)) for rank, words in said.items()
        }
        if ranks and (warm := self._warm()):
            # The worker's, and told once.
            first = next(iter(ranks.values()))
            first["measured"] = {**first.get("measured", {}), "warm_bytes": float(warm)}
        if not ranks or ranks == self._told:
            return FIRST_SECONDS
        try:
            pause = report({"attempt": self._attempt, "ranks": ranks}, seconds)
        except NoAnswerError as error:
            self._failures += 1
            if self._failures == SILENT_FAILURES:
                self._say(f"the operator is not told of the ranks' progress for now; training goes on: {error}")
            return min(LONGEST_SECONDS, 2.0**self._failures)
        if self._failures >= SILENT_FAILURES:
            self._say("the operator is told of the ranks' progress again")
        self._failures, self._told = 0, ranks
        return pause


def _words(said: Said, usual: Usual, stack: Sequence[str] | None) -> dict[str, Any]:
    """What is told of a rank: no field of which nothing is known, and nothing that the operator would refuse."""
    # The program has timed each step where it uses the library; the agent has only looked now and then.
    took = usual.step if said.seconds is None else said.seconds
    known = {
        "step": said.step,
        "phase": said.phase,
        "total": said.total,
        "loss": said.loss,
        "seconds": took and float(f"{took:.4g}"),
        "own": usual.own and float(f"{usual.own:.4g}"),
        "first": said.first,
    }
    words: dict[str, Any] = {
        name: value for name, value in known.items() if isinstance(value, str) or _is_sound(name, value)
    }
    measured = {
        # The number of a step is that one and no other.
        name: int(value) if name == "checkpoint_step" else float(f"{value:.4g}")
        for name, value in said.measured.items()
        if value <= (MOST if name == "checkpoint_step" else LARGEST)
    }
    if measured:
        words["measured"] = measured
    if stack:
        words["stack"] = [*stack]
    return words


def _is_sound(name: str, value: float | None) -> bool:
    if value is None:
        return False
    return value <= MOST if name in {"step", "total", "first"} else math.isfinite(value) and abs(value) <= LARGEST
