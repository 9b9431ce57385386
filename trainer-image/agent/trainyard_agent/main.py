"""`trainyard-agent [--once] [--] COMMAND …`: starts the ranks. With the first that fails or hangs all end, and so does the agent, unless
there is an operator, which has them started again.

With `--once` the command starts the ranks itself, as torchrun does: it is started once, and its ranks are known by the progress they tell.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainyard_agent.attempt import Command
from trainyard_agent.group import Group
from trainyard_agent.orders import State, waits_at_first
from trainyard_agent.ranks import SettingError, grace_seconds, hang_seconds, place
from trainyard_agent.restarts import Restarts
from trainyard_agent.spawn import STANDARD_ERROR
from trainyard_agent.sync import Sync
from trainyard_agent.worker import Worker

LOG = "/dev/termination-log"
USAGE, UNABLE = 2, 96


def main(arguments: Sequence[str] | None = None, heard: list[int] | None = None) -> int:
    """Run the command. Returns the exit code of the worker: that of the rank that failed first, 91 after a hang, else 0.

    `heard`: the signals that have come already.
    Whatever is raised before anything was started asks for a worker without this agent, by the exit code 96.
    """
    group = Group(heard)
    try:
        return _run(arguments, group)
    except Exception as error:
        if group.has_run:
            raise
        traceback.print_exc()
        _tell(f"trainyard-agent: {type(error).__name__} before the command was started: {error}")
        return UNABLE


def _run(arguments: Sequence[str] | None, group: Group) -> int:
    command = list(sys.argv[1:] if arguments is None else arguments)
    once = command[:1] == ["--once"]
    command = command[1:] if once else command
    command = command[1:] if command[:1] == ["--"] else command
    if not command or command[0].startswith("-"):
        return _refuse(USAGE, "usage: trainyard-agent [--once] [--] COMMAND [ARGUMENT …]")
    try:
        where, wait = place(os.environ), waits_at_first(os.environ)
        hang_seconds(os.environ)
        grace_seconds(os.environ)
    except SettingError as error:
        return _refuse(USAGE, str(error))
    restarts = Restarts(os.environ, _say)
    wait = wait or restarts.attempt is not None
    attempt, state = restarts.attempt or where.attempt, State.WAITING if wait else State.RUNNING
    with group, Sync(os.environ, _say, group.wake, attempt, state) as sync:
        end = Worker(Command(command, once), os.environ, group, sync, _say, restarts).run(wait=wait)
        if end.message is not None:
            _tell(end.message)
    return end.code


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
            # Whatever the encoding of this container is.
            path.write_bytes(message.encode(errors="replace"))
    except OSError as error:
        _say(f"{path} cannot be written: {error.strerror}")
