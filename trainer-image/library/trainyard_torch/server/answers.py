"""Replies of a server, and the errors that end a training with servers. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainyard_torch.server.parameter_store import Tensors

LOST_EXIT_CODE = 92
"""The exit code of a process that exits because another one was lost. The failure counts for that one, if it is known."""


class TrainerLeftError(Exception):
    """A trainer has left, and the others cannot continue without it. The message names it."""


class ServerClosedError(Exception):
    """A process was lost, and the server closes. The message names it, and is sent to all trainers."""


class ServerError(Exception):
    """A server refuses a request, or timed out waiting for a trainer. The message names them."""


class WorkerLostError(ServerError):
    """A process has died or is unreachable, so this one exits. The message names it."""

    exit_code = LOST_EXIT_CODE


class Answer(NamedTuple):
    """The parameters that a trainer uses from now on.

    Attributes:
        version: the number of updates in these parameters.
        parameters: a copy of them, by name.
        stop: whether the training ends after this update.
    """

    version: int
    parameters: Tensors
    stop: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a server.

    Attributes:
        updates: the optimizer steps since this start of the training.
        applied: the gradients since then; with synchronous training several make one update.
        stalest: the largest staleness of a gradient, in updates.
        staleness: the sum of the staleness of all gradients. Divided by `applied`, it is the mean.
    """

    updates: int = 0
    applied: int = 0
    stalest: int = 0
    staleness: int = 0

    def and_of(self, stale: list[int]) -> Counts:
        """Return the counts with one more update, made of gradients of this staleness."""
        applied, staleness = self.applied + len(stale), self.staleness + sum(stale)
        return Counts(self.updates + 1, applied, max(self.stalest, *stale), staleness)


class ServerStatus(NamedTuple):
    """The status of a server.

    Attributes:
        version: the number of updates in its parameters.
        here: the trainers that have not left.
        missing: the trainers that are waited for: for their gradient, or for trainer 0 to start the training.
        ignorant: the trainers of `here` that were not notified of a lost process yet.
        lost: the lost process; "" if none.
        stopped: whether a trainer is finishing because a stop was requested.
        counts: the counts of the server.
    """

    version: int
    here: list[int]
    missing: list[int]
    ignorant: list[int]
    lost: str
    stopped: bool
    counts: Counts
