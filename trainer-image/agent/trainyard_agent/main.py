"""`trainyard-agent [--once] [--] COMMAND …`: starts the ranks, and ends as the first of them that fails, or when one hangs.

With `--once` the command starts the ranks itself, as torchrun does: it is started once, and its ranks are known by the progress they tell.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from trainyard_agent import memory, stacks, words
from trainyard_agent.group import STANDARD_ERROR, Group
from trainyard_agent.hang import Hang
from trainyard_agent.ranks import SettingError, environments, hang_seconds, place
from trainyard_agent.reading import Progress, shared
from trainyard_agent.report import STACKS
from trainyard_agent.reporter import Reporter

STOP_SECONDS = 2.0
"""How long the other ranks get to end by themselves when one has failed: they wait for it in vain."""
STACK_SECONDS = 5.0
"""How long ranks that hang get to write down where they stand."""
ASK_SECONDS = 0.5
"""How long ranks get to write down where they stand and go on."""
TOGETHER_SECONDS = 2.0
"""Within which the workers of a group notice that it hangs, and tell."""
LOOK_AGAIN_SECONDS = 0.1
LOG = "/dev/termination-log"
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
USAGE, HANG, CANNOT_EXECUTE, NOT_FOUND = 2, 91, 126, 127


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code of the worker: that of the rank that failed first, 91 after a hang, else 0."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    once = command[:1] == ["--once"]
    command = command[1:] if once else command
    command = command[1:] if command[:1] == ["--"] else command
    if not command or command[0].startswith("-"):
        return _refuse(USAGE, "usage: trainyard-agent [--once] [--] COMMAND [ARGUMENT …]")
    try:
        where, limit = place(os.environ), hang_seconds(os.environ)
    except SettingError as error:
        return _refuse(USAGE, str(error))
    before = memory.read()
    with Progress(limit, _say, launcher=once) as progress, Group() as group, ExitStack() as stack:
        made = {where.worker: dict(os.environ)} if once else environments(where, os.environ)
        for rank, variables in made.items():
            variables.update(shared(variables))
            variables.update(progress.variables(rank))
        try:
            group.start(command, made)
        except OSError as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
            return _refuse(code, f"cannot start {command[0]}: {error.strerror}")
        reporter = stack.enter_context(
            Reporter(os.environ, where.attempt, lambda: (progress.said(where.ranks), progress.usual), _say)
        )
        hang = _watch(group, progress)
        if hang is not None:
            stands = _ask(group, progress, reporter if where.workers > 1 else None)
            group.keep_no_cores()
            # Python's faulthandler writes down the stacks of all threads at this signal.
            group.end(signal.SIGABRT, STACK_SECONDS)
            last = {} if once else {ending.rank: ending.said for ending in group.endings}
            _tell(stacks.message(hang, {**stacks.by_rank(last), **stands}))
            return HANG
        cause = next((ending for ending in group.endings if ending.code != 0), None)
        if cause is None:
            reporter.finish()
            return 0
        who, said = ("the command", words.of_ranks(cause.said)) if once else (f"rank {cause.rank}", cause.said)
        after, step = memory.read(), progress.step(cause.rank)
        # Where there is no more to say than the exit code, the kubelet takes the end of the log, standard output included.
        if (
            not once
            or words.message(who, cause.code, said, before, after) != f"{who} ended with exit code {cause.code}"
        ):
            _tell(words.message(who, cause.code, said, before, after, step))
        return cause.code


def _watch(group: Group, progress: Progress) -> Hang | None:
    """Until all ranks have ended, of themselves or because one has failed, or until one hangs. Signals are passed on."""
    passed = 0
    while group.running:
        group.wait(progress.interval)
        for number in group.heard[passed:]:
            group.send(number)
        passed = len(group.heard)
        # Asked to end, each rank does so in its own time: to write a checkpoint, say. The kubelet's patience has an end.
        if not ENDING.isdisjoint(group.heard):
            continue
        if group.failed:
            group.end(signal.SIGTERM, STOP_SECONDS)
        elif hang := progress.look(group.running):
            return hang
    while not ENDING.isdisjoint(group.heard) and group.outlasted():
        group.wait(LOOK_AGAIN_SECONDS)
    return None


def _ask(group: Group, progress: Progress, reporter: Reporter | None) -> dict[int, list[str]]:
    """Where the ranks stand, while they still do. The operator hears the same of the other workers, and knows the odd one out.

    They are left alone for a while: where one of them ends, those that wait for it elsewhere end too, and nobody sees at what.
    """
    began = time.monotonic()
    group.ask(STACKS)
    _listen(group, began + ASK_SECONDS)
    stands = stacks.by_rank(said := progress.stacks())
    if progress.launcher:
        # The others say so themselves, at the signal by which they end.
        for rank, text in sorted(said.items()):
            _say(f"rank {rank} hangs, or waits for one that does\n{text}")
    if reporter is not None and reporter.on:
        reporter.hang(stands)
        _listen(group, began + TOGETHER_SECONDS)
    return stands


def _listen(group: Group, end: float) -> None:
    """To what the ranks say, until then, or until they or this worker have to end."""
    while group.running and ENDING.isdisjoint(group.heard) and (left := end - time.monotonic()) > 0:
        group.wait(left)


def _refuse(code: int, reason: str) -> int:
    _say(reason)
    _tell(reason)
    return code


def _say(words_: str) -> None:
    # From any thread, and where nobody reads any more.
    with suppress(OSError):
        os.write(STANDARD_ERROR, f"trainyard-agent: {words_}\n".encode(errors="replace"))


def _tell(message: str) -> None:
    """Where the kubelet looks for the cause. Without that file, outside of a container, nowhere."""
    path = Path(os.environ.get("TRAINYARD_TERMINATION_LOG", LOG))
    try:
        if path.exists():
            path.write_text(message)
    except OSError as error:
        _say(f"{path} cannot be written: {error.strerror}")
