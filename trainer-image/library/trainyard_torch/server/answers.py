"""Replies of a server, and the errors that end a training with servers. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainyard_torch.server.parameter_store import Tensors

LOST_EXIT_CODE = 92
"""The exit code of a process that ends because another one was lost: charged to that one, where it is known."""


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
    """What a trainer works with from now on.

    Attributes:
        version: updates in these parameters.
        parameters: a copy of them, by name.
        stop: whether the training is to end after this update.
    """

    version: int
    parameters: Tensors
    stop: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server has done.

    Attributes:
        updates: optimizer steps since this start of the training.
        applied: gradients since then; with synchronous training several make one update.
        stalest: the largest staleness of a gradient, in updates.
        staleness: that of all gradients together: by `applied`, their mean.
    """

    updates: int = 0
    applied: int = 0
    stalest: int = 0
    staleness: int = 0

    def and_of(self, stale: list[int]) -> Counts:
        """With one more update, made of gradients that are so stale."""
        applied, staleness = self.applied + len(stale), self.staleness + sum(stale)
        return Counts(self.updates + 1, applied, max(self.stalest, *stale), staleness)


class ServerStatus(NamedTuple):
    """The status of a server.

    Attributes:
        version: updates in its parameters.
        here: the trainers that have not left.
        missing: trainers that are waited for: for their gradient, or for trainer 0 to start the training.
        ignorant: trainers of `here` that have not received the loss of a process yet.
        lost: what was; "" where nothing was.
        stopped: whether a trainer is finishing because a stop was requested.
        counts: what it has done.
    """

    version: int
    here: list[int]
    missing: list[int]
    ignorant: list[int]
    lost: str
    stopped: bool
    counts: Counts
