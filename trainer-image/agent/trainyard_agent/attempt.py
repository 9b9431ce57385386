"""One attempt of the ranks of this worker: they are started, watched, and end; what is then told of it. Each has files of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

from trainyard_agent import stacks, words
from trainyard_agent.group import ENDING, Ending, Group
from trainyard_agent.hang import Hang
from trainyard_agent.leaving import Leaving
from trainyard_agent.memory import Kills
from trainyard_agent.orders import News
from trainyard_agent.ranks import environments, grace_seconds, hang_seconds, place
from trainyard_agent.reading import Progress, shared
from trainyard_agent.recorder import Recorder, defaults
from trainyard_agent.report import STACKS
from trainyard_agent.reporter import Reporter
from trainyard_agent.spawn import NEVER
from trainyard_agent.stopping import SAVED
from trainyard_agent.sync import Failure, Leave
from trainyard_agent.warm import Warm

STOP_SECONDS = 2.0
"""How long the other ranks get to end by themselves when one has failed: they wait for it in vain."""
STACK_SECONDS = 5.0
"""How long ranks that hang get to write down where they stand."""
ASK_SECONDS = 0.5
"""How long ranks get to write down where they stand and go on."""
TOGETHER_SECONDS = 1.5
"""Within which the workers of a group notice that it hangs, and tell."""
RECORD_SECONDS = 5.0
"""Within which ranks write down their flight recorder: they look once a second whether they are to."""
LOOK_AGAIN_SECONDS = 0.1
LOOK_SECONDS = 1.0
CAUSE_SECONDS = 3.0
"""How long the rank that is the cause may take to end after one that lost it: to close its process group and its device, say."""
FAILED, HANG = 1, 91


class Command(NamedTuple):
    """What is run."""

    words: Sequence[str]
    once: bool
    """It starts the ranks itself."""


class Line(NamedTuple):
    """To the operator, for one attempt."""

    stop: Callable[[], bool]
    """Whether the ranks have to end, now."""
    failed: Callable[[Failure], object]
    """Called when one has failed, before the others end."""
    leave: Callable[[Leave], object]
    """Called with how far this worker is on the way to an end together with all others."""
    news: Callable[[], News]
    """What is known of the operator."""


class Outcome(NamedTuple):
    """How an attempt ended."""

    failure: Failure | None = None
    stopped: bool = False
    """By order: how far it would have come is not known."""


class Attempt:
    """`environment` is the worker's for this attempt. Raises SettingError where the operator's part of it makes no sense.

    `tellers`: the ranks that have told steps in an attempt before this one; those of this one are added.
    """

    def __init__(
        self,
        command: Command,
        environment: Mapping[str, str],
        group: Group,
        say: Callable[[str], None],
        warm: Warm | None = None,
        tellers: set[int] | None = None,
    ) -> None:
        self._command, self._environment, self._group, self._say = command, environment, group, say
        self._warm = warm
        self._where, self._limit = place(environment), hang_seconds(environment)
        self._tellers = set[int]() if tellers is None else tellers
        self._kills = Kills()

    def run(self, line: Line) -> Outcome:
        """Until all ranks have ended."""
        group = self._group
        with ExitStack() as stack:
            progress = stack.enter_context(Progress(self._limit, self._say, self._tellers, launcher=self._command.once))
            recorder = stack.enter_context(Recorder(self._environment, self._where, self._say))
            made = self._made()
            for rank, variables in made.items():
                variables.update({**progress.variables(rank), **recorder.variables})
            try:
                if self._warm is None or not self._warm.start(made):
                    group.start(self._command.words, made)
            except OSError as error:
                return Outcome(self._not_started(error, line.failed))
            self.prepare(delay=True)
            reporter = stack.enter_context(
                Reporter(
                    self._environment,
                    self._where.attempt,
                    lambda: (progress.said(self._where.ranks), progress.usual),
                    self._say,
                    lambda: self._warm.resident if self._warm else 0,
                )
            )
            outcome = self._watch(progress, reporter, recorder, line)
            if kept := recorder.told():
                self._say(kept)
            if outcome == Outcome():
                reporter.finish()
                recorder.finish()
            return outcome

    def prepare(self, *, delay: bool) -> None:
        """Have what the ranks of the next start need got ready. `delay`: not at this moment, in which they start themselves."""
        if self._warm is not None:
            self._warm.prepare([*self._made().values()], delay=delay)

    def _made(self) -> dict[int, dict[str, str]]:
        """The environment of each process, by rank."""
        own = dict(self._environment)
        made = {self._where.worker: own} if self._command.once else environments(self._where, own)
        return {rank: {**variables, **shared(variables), **defaults(variables)} for rank, variables in made.items()}

    def _watch(self, progress: Progress, reporter: Reporter, recorder: Recorder, line: Line) -> Outcome:
        """Until all ranks have ended, of themselves or because one has failed, or until one hangs. Signals are passed on."""
        group, failure = self._group, None
        with closing(self._leaving(progress, line)) as leaving:
            passed, withheld = len(group.heard), list[int]()
            while group.running:
                group.wait(min((each for each in (progress.interval, leaving.interval) if each), default=LOOK_SECONDS))
                spared = leaving.look(group.asked)
                recorder.keep()
                self._kills.look()
                came = [*withheld, *group.heard[passed:]]
                passed, withheld = len(group.heard), [number for number in came if spared and number in ENDING]
                for number in came:
                    if number not in withheld:
                        group.send(number)
                # Asked to end, each rank does so in its own time: to write a checkpoint, say. The kubelet's patience has an end.
                if group.asked_to_end and not spared:
                    continue
                if group.failed and not (group.running and leaving.expects(ending.code for ending in group.endings)):
                    self._await_cause(line)
                    line.failed(failure := self._failure(progress))
                    group.end(signal.SIGTERM, STOP_SECONDS)
                elif group.running and line.stop():
                    self._say_where(progress, recorder, line)
                    group.end(signal.SIGTERM, STOP_SECONDS)
                    return Outcome(stopped=True)
                elif group.running and not leaving.holds and (hang := progress.look(group.running)):
                    return Outcome(self._hang(hang, progress, reporter, recorder, line.failed))
            while group.asked_to_end and group.outlasted():
                group.wait(LOOK_AGAIN_SECONDS)
            if not group.failed and (step := leaving.obeyed) is not None:
                # They have not done all their work, whatever they call it.
                told = f"the ranks ended after step {step}, as all were told to; their exit code 0 counts as {SAVED}"
                line.failed(failure := Failure(SAVED, told, time.monotonic()))
        return Outcome(failure or (self._failure(progress) if group.failed else None))

    def _leaving(self, progress: Progress, line: Line) -> Leaving:
        # Ranks of a launcher end as it wants.
        folder = None if self._command.once else progress.folder
        return Leaving(folder, self._where, grace_seconds(self._environment), line.leave, line.news)

    def _await_cause(self, line: Line) -> None:
        """Those that lost a peer end at once; the peer, whose exit code and words are wanted, may still be at it."""
        group, end = self._group, time.monotonic() + CAUSE_SECONDS
        while self._waits(end) and all(map(_is_victim, self._failed())) and not line.stop():
            group.wait(LOOK_AGAIN_SECONDS)

    def _failed(self) -> list[Ending]:
        return [ending for ending in self._group.endings if ending.code != 0]

    def _failure(self, progress: Progress) -> Failure:
        # The first that did not only follow others, into an end that was agreed upon or because it lost one.
        cause = min(self._failed(), key=lambda ending: (ending.code == SAVED, _is_victim(ending)))
        once, (after, ago), before = self._command.once, self._kills.now(), self._kills.before
        who, said = (
            ("the command", words.of_ranks(cause.said)) if once else (f"rank {cause.rank}", words.of_rank(cause.said))
        )
        if cause.code == SAVED:
            # Whatever it has said last is no reason.
            said = "it was asked to end, and has saved"
        # Where there is no more to say than the exit code, the kubelet takes the end of the log, standard output included.
        plain = f"{who} ended with exit code {cause.code}"
        needs_telling = not once or words.message(who, cause.code, said, before, after) != plain
        message = words.message(who, cause.code, said, before, after, progress.step(cause.rank), ago)
        if needs_telling:
            # Of one that was killed nothing else would stand in the log.
            self._say(message.partition("\n")[0])
        return Failure(cause.code, message, time.monotonic(), needs_telling)

    def _hang(
        self,
        hang: Hang,
        progress: Progress,
        reporter: Reporter,
        recorder: Recorder,
        failed: Callable[[Failure], object],
    ) -> Failure:
        group, at = self._group, time.monotonic()
        recorded = recorder.ask()
        said = self._ask(progress, reporter if self._where.workers > 1 else None)
        self._await_records(recorder, at, recorded=recorded)
        stands = stacks.by_rank(said)
        silent = progress.silent(stands)
        if self._command.once or set(group.running) - stands.keys() - group.stopped:
            group.keep_no_cores()
            # Python's faulthandler writes down the stacks of all threads at this signal.
            group.end(signal.SIGABRT, STACK_SECONDS)
        else:
            # All have told, but for those that are stopped, which never would.
            self._show(said)
            group.kill()
        last = {} if self._command.once else {ending.rank: ending.said for ending in group.endings}
        failure = Failure(HANG, stacks.message(hang, {**silent, **stacks.by_rank(last), **stands}, recorder.told()), at)
        failed(failure)
        return failure

    def _say_where(self, progress: Progress, recorder: Recorder, line: Line) -> None:
        """Where another worker was the first to notice that the group hangs: the stacks and the flight recorders of this one's ranks, while they run."""
        order = line.news().order
        if order is None or not order.hung:
            return
        at, recorded = time.monotonic(), recorder.ask()
        said = self._ask(progress, None)
        if not progress.launcher:
            self._show(said)
        self._await_records(recorder, at, recorded=recorded)

    def _await_records(self, recorder: Recorder, at: float, *, recorded: bool) -> None:
        while recorded and not recorder.answered() and self._waits(at + RECORD_SECONDS):
            self._listen(min(time.monotonic() + LOOK_AGAIN_SECONDS, at + RECORD_SECONDS))

    def _ask(self, progress: Progress, reporter: Reporter | None) -> dict[int, str]:
        """Where the ranks stand, in their own words, while they still do. The operator hears the same of the other workers, and knows the odd one out.

        They are left alone for a while: where one of them ends, those that wait for it elsewhere end too, and nobody sees at what.
        """
        began = time.monotonic()
        self._group.ask(STACKS)
        self._listen(began + ASK_SECONDS)
        said = progress.stacks()
        if progress.launcher:
            # The others say so themselves, at the signal by which they end.
            self._show(said)
        if reporter is not None and reporter.on:
            stands = stacks.by_rank(said)
            reporter.hang({**progress.silent(stands), **stands})
            self._listen(began + TOGETHER_SECONDS)
        return dict(said)

    def _show(self, said: Mapping[int, str]) -> None:
        for rank, text in sorted(said.items()):
            self._say(f"rank {rank} hangs, or waits for one that does\n{text}")

    def _listen(self, end: float) -> None:
        """To what the ranks say, until then, or until they or this worker have to end."""
        while self._waits(end):
            self._group.wait(end - time.monotonic())

    def _waits(self, end: float) -> bool:
        return bool(self._group.running) and not self._group.asked_to_end and time.monotonic() < end

    def _not_started(self, error: OSError, failed: Callable[[Failure], object]) -> Failure:
        # What has run in this container, or fails for want of something, may run again, if not here.
        code = FAILED if self._group.has_run else NEVER.get(error.errno, FAILED)
        failure = Failure(code, f"cannot start {self._command.words[0]}: {error.strerror}", time.monotonic())
        self._say(failure.message)
        failed(failure)
        return failure


def _is_victim(ending: Ending) -> bool:
    return words.lost_a_peer(ending.code, ending.said)
