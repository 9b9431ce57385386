"""Ask the agents of the other workers of an MPI job whether their daemons have succeeded."""

from __future__ import annotations

import time
from enum import Enum
from typing import NamedTuple

from trainyard_agent.group import Group
from trainyard_agent.mpi import Members
from trainyard_agent.remote_client import ask
from trainyard_agent.remote_lines import Action, LineError

ANSWER_SECONDS = 2.0
"""For which a worker may take to answer. One that takes longer is lost, or its attempt has ended."""
PATIENCE_SECONDS = 10.0
"""For all of them together: the operator's orders wait meanwhile."""


class Verdict(Enum):
    """What the other workers have in common."""

    SUCCEEDED = "all daemons have exited with code 0"
    BUSY = "a daemon runs"
    FAILED = "a worker has failed, or is lost"


class PeersAnswer(NamedTuple):
    """What the other workers have answered."""

    verdict: Verdict
    why: str = ""


class Peers:
    """The other workers of an attempt, for the one that has run the launcher."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def ask(self, group: Group) -> PeersAnswer:
        """Return what the daemons of the others do."""
        return self._ask_all(Action.STATE, group)

    def finish(self, group: Group) -> PeersAnswer:
        """Report to all of them that the launcher has succeeded."""
        return self._ask_all(Action.FINISH, group)

    def _ask_all(self, action: Action, group: Group) -> PeersAnswer:
        end, busy = time.monotonic() + PATIENCE_SECONDS, ""
        for name, address in self._members.others.items():
            # Signals, and daemons that the launcher has started in this worker.
            group.wait(0)
            try:
                answer = ask(self._members, address, action, ANSWER_SECONDS)
            except (OSError, LineError) as error:
                return PeersAnswer(Verdict.FAILED, f"{name} does not answer: {error}")
            if answer.get("failed") is not False:
                return PeersAnswer(Verdict.FAILED, f"a rank or daemon of {name} has failed")
            if answer.get("running") != 0:
                busy = f"a daemon still runs in {name}"
            if group.is_terminating or time.monotonic() >= end:
                return PeersAnswer(Verdict.BUSY, "not all workers have answered in time")
        return PeersAnswer(Verdict.BUSY, busy) if busy else PeersAnswer(Verdict.SUCCEEDED)
