"""`trainyard-agent [--once] [--] COMMAND …`: run the ranks of a worker.

When a rank fails or hangs, all are stopped and the agent exits, unless there is an operator, which orders a restart.
With `--once` the command starts the ranks itself, as torchrun does: it is started once, and its ranks are known by their progress.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainyard_agent.attempt import Command
from trainyard_agent.container_restart import ContainerRestart
from trainyard_agent.group import Group
from trainyard_agent.horovod import rendezvous
from trainyard_agent.mpi import members
from trainyard_agent.orders import waits_at_start
from trainyard_agent.preflight import preflight_command
from trainyard_agent.probe_state import ProbeState
from trainyard_agent.protocol import AgentState
from trainyard_agent.ranks import (
    SettingError,
    grace_seconds,
    hang_seconds,
    hidden_failures_fail,
    place,
    rank_variables,
    restart_grace_seconds,
)
from trainyard_agent.spawn import STANDARD_ERROR, raise_file_limit
from trainyard_agent.sync import Sync
from trainyard_agent.termination_message import Kind, Termination, write
from trainyard_agent.worker import Worker

TERMINATION_LOG = "/dev/termination-log"
USAGE_CODE, UNABLE_CODE = 2, 96


def main(arguments: Sequence[str] | None = None, signals: list[int] | None = None) -> int:
    """Run the command. Returns the exit code of the worker: that of the rank that failed first, 91 after a hang, else 0.

    `signals`: those that have come already.
    Whatever is raised before anything was started asks for a worker without this agent, by the exit code 96.
    """
    group = Group(signals)
    try:
        return _run(arguments, group)
    except Exception as error:
        if group.has_run:
            raise
        traceback.print_exc()
        reason = f"{type(error).__name__} before the command was started: {error}"
        _write(write(Termination(Kind.AGENT_UNABLE, exit_code=UNABLE_CODE), reason))
        return UNABLE_CODE


def _run(arguments: Sequence[str] | None, group: Group) -> int:
    command = list(sys.argv[1:] if arguments is None else arguments)
    starts_ranks = command[:1] == ["--once"]
    command = command[1:] if starts_ranks else command
    command = command[1:] if command[:1] == ["--"] else command
    if not command or command[0].startswith("-"):
        return _reject("usage: trainyard-agent [--once] [--] COMMAND [ARGUMENT …]")
    try:
        own_place, wait = place(os.environ), waits_at_start(os.environ)
        hang_seconds(os.environ)
        grace_seconds(os.environ)
        restart_grace_seconds(os.environ)
        hidden_failures_fail(os.environ)
        rank_variables(os.environ)
        preflight_command(command, os.environ)
        if not wait:
            members(os.environ, own_place, "")
        rendezvous(os.environ)
        started = Command.of(command, os.environ, starts_ranks=starts_ranks)
    except SettingError as error:
        return _reject(str(error))
    raise_file_limit()
    restarts = ContainerRestart(os.environ, _log)
    wait = wait or restarts.attempt is not None
    attempt, state = restarts.attempt or own_place.attempt, AgentState.WAITING if wait else AgentState.RUNNING
    with group, Sync(os.environ, _log, group.wake, attempt, state) as sync:
        probes = ProbeState(os.environ, _log)
        if started.deepspeed:
            unused = " ".join(started.deepspeed.unused) or "none"
            _log(
                f"starting the ranks in place of the deepspeed launcher; options of the launcher that are not used: {unused}"
            )
        worker = Worker(started, os.environ, group, sync, _log, restarts, probes)
        exited = worker.run(wait=wait)
        if exited.message is not None:
            _write(exited.message)
    return exited.code


def _reject(reason: str) -> int:
    _log(reason)
    _write(write(Termination(Kind.MISCONFIGURED, exit_code=USAGE_CODE), reason))
    return USAGE_CODE


def _log(text: str) -> None:
    # From any thread, and without a reader of stderr.
    with suppress(OSError):
        os.write(STANDARD_ERROR, f"trainyard-agent: {text}\n".encode(errors="replace"))


def _write(message: str) -> None:
    """Write the termination message to where the kubelet reads it. Without that file, outside of a container, nowhere."""
    path = Path(os.environ.get("TRAINYARD_TERMINATION_LOG", TERMINATION_LOG))
    try:
        if path.exists():
            # Whatever the encoding of this container is.
            path.write_bytes(message.encode(errors="replace"))
    except OSError as error:
        _log(f"cannot write {path}: {error.strerror}")
