"""One server's shard: the version of each trainer, and when a gradient is applied. Independent of the network.

Trainers call it from many threads at once. No thread blocks: a caller that has to wait gets a future.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.futures import Future

from trainyard_torch.server.answers import Answer, Counts, ServerClosedError, ServerStatus, TrainerLeftError
from trainyard_torch.server.parameter_store import ParameterStore
from trainyard_torch.server.roles import may_apply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch


NO_VERSION = sys.maxsize
"""The version of a trainer without pending work: it never limits staleness."""


@dataclass
class _Push:
    """A gradient that waits to be applied."""

    gradients: Mapping[str, torch.Tensor | None]
    answer: Future[Answer] = field(default_factory=Future)


_Reply = tuple[_Push, Answer | Exception]


class Shard:
    """Some parameters of a model, shared by trainers.

    Args:
        parameters: the parameters by name; they are copied to the CPU.
        optimizer: makes an optimizer of a list of parameters.
        trainers: the number of trainers, at least 1.
        staleness: None: each update uses one gradient of every trainer. A number: each gradient is applied on its own, and is at most this many
            updates stale.

    Raises:
        ValueError: the staleness bound is too small for the number of trainers.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
        trainers: int,
        staleness: int | None,
    ) -> None:
        if staleness is not None and staleness < trainers - 1:
            raise ValueError(
                f"staleness must be from {trainers - 1} on, as each of {trainers} trainers may be the last of a round, got "
                f"{staleness}: None makes all wait for each other"
            )
        self._store = ParameterStore(parameters, optimizer)
        self._staleness = staleness
        self._lock = threading.Lock()
        self._version = 0
        self._counts = Counts()
        # The versions of the trainers that have not left, by their number.
        self._versions = dict.fromkeys(range(trainers), 0)
        self._left: set[int] = set()
        # Trainers that have not pulled the parameters yet.
        self._must_pull = set(self._versions)
        self._waiting: dict[int, _Push] = {}
        self._begun: Future[int] = Future()
        self._stopping = self._stopped = False
        self._closed_because, self._informed = "", set[int]()

    def begin(self, state: Mapping[str, Any] | None) -> None:
        """Start the training with the current parameters, or with this state, in which values of other parameters are ignored.

        Raises:
            ValueError: a parameter is missing or has another shape, or a trainer has pulled already.
        """
        with self._lock:
            if self._begun.done() or self._must_pull != self._versions.keys():
                raise ValueError("the training has started already: load a state before any trainer pulls")
            if state is not None:
                self._store.load(state)
                self._version = int(state["updates"])
                self._versions = dict.fromkeys(self._versions, self._version)
            self._begun.set_result(self._version)

    def begun(self) -> Future[int]:
        """Return a future of the updates in the resumed state (0 if there is none). It is set by `begin`."""
        return self._begun

    def pull(self, trainer: int) -> Answer:
        """Return the version and a copy of the parameters, which this trainer uses from now on.

        Raises:
            LeftError: it has left.
            ValueError: there is no such trainer, or it has a pending gradient.
        """
        with self._lock:
            self._check(trainer)
            self._must_pull.discard(trainer)
            self._versions[trainer] = self._version
            ready = self._apply()
            answer = Answer(self._version, self._store.copy())
        self._send(ready)
        return answer

    def push(self, trainer: int, gradients: Mapping[str, torch.Tensor | None]) -> Future[Answer]:
        """Accept a gradient for the trainer's parameters; None for a parameter that it did not use.

        When the gradient was applied, the future is set to the new version and a copy of the parameters. If the server has closed, it is set to
        ServerClosedError.

        Raises:
            LeftError: it has left, or with synchronous training another one.
            ValueError: this is not a gradient of these parameters, the trainer has a pending one, or it has to pull first.
        """
        push = _Push(gradients)
        with self._lock:
            self._check(trainer)
            if self._left and self._staleness is None:
                raise TrainerLeftError(self._left_text())
            if trainer in self._must_pull:
                raise ValueError(f"trainer-{trainer} has other parameters than the server: pull before the push")
            self._store.check(gradients)
            self._waiting[trainer] = push
            ready = self._closed_replies() if self._closed_because else self._apply()
        self._send(ready)
        return push.answer

    def release(self, trainer: int) -> None:
        """Record that this trainer computes no gradient: with asynchronous training, others do not wait for it. It may pull again.

        Raises:
            LeftError: it has left.
            ValueError: there is no such trainer, or it has a pending gradient.
        """
        with self._lock:
            self._check(trainer)
            self._must_pull.add(trainer)
            self._versions[trainer] = NO_VERSION
            ready = self._apply()
        self._send(ready)

    def leave(self, trainer: int) -> None:
        """Record that this trainer has left: others do not wait for it, and waiting synchronous trainers are notified."""
        with self._lock:
            self._left.add(trainer)
            self._versions.pop(trainer, None)
            self._waiting.pop(trainer, None)
            if self._staleness is None:
                ready: list[_Reply] = [(push, TrainerLeftError(self._left_text())) for push in self._waiting.values()]
                self._waiting.clear()
            else:
                ready = self._apply()
        self._send(ready)

    def stop(self) -> None:
        """Request a stop: replies to gradients carry it. Synchronous trainers all get it after the same update."""
        with self._lock:
            self._stopping = True

    def acknowledge(self) -> None:
        """Record that a trainer is finishing because a stop was requested."""
        with self._lock:
            self._stopped = True

    def close(self, text: str) -> None:
        """Close the shard because a process was lost: nothing is applied any more, and all waiting trainers are notified."""
        with self._lock:
            self._closed_because = text
            ready = self._closed_replies()
            if not self._begun.done():
                self._begun.set_exception(ServerClosedError(text))
        self._send(ready)

    def status(self) -> ServerStatus:
        """Return the current status."""
        with self._lock:
            here = sorted(self._versions)
            waited_for = [each for each in here if each not in self._waiting] if self._waiting else []
            return ServerStatus(
                version=self._version,
                here=here,
                missing=waited_for if self._begun.done() else [0],
                ignorant=[each for each in here if each not in self._informed],
                lost=self._closed_because,
                stopped=self._stopped,
                counts=self._counts,
            )

    def configure(self, options: Mapping[str, Any]) -> None:
        """Set options of the optimizer, such as `{"lr": 0.1}`.

        Raises:
            ValueError: it has no such option.
        """
        with self._lock:
            self._store.configure(options)

    def state(self) -> dict[str, Any]:
        """Return the parameters and the optimizer's state by name, its options, and the number of updates, for a checkpoint."""
        with self._lock:
            return {**self._store.state(), "updates": self._version}

    def _check(self, trainer: int) -> None:
        if trainer in self._left:
            raise TrainerLeftError(self._left_text())
        if trainer not in self._versions:
            raise ValueError(f"there is no trainer-{trainer}")
        # Its version may not change while a gradient for it is pending.
        if trainer in self._waiting:
            raise ValueError(f"trainer-{trainer} has a gradient waiting: push the next one after the answer")

    def _left_text(self) -> str:
        left = ", ".join(f"trainer-{trainer}" for trainer in sorted(self._left))
        return f"{left} has left, and pushes no more gradients: the others cannot stay in step with it"

    def _closed_replies(self) -> list[_Reply]:
        """Return error replies for all waiting trainers."""
        self._informed |= self._waiting.keys()
        ready: list[_Reply] = [(push, ServerClosedError(self._closed_because)) for push in self._waiting.values()]
        self._waiting.clear()
        return ready

    def _apply(self) -> list[_Reply]:
        """Apply all gradients that may be applied now. Return the replies."""
        if self._staleness is None:
            complete = self._waiting and self._waiting.keys() == self._versions.keys()
            # In the order of trainers, so that the sum does not depend on the order of arrival.
            return self._applied(sorted(self._versions)) if complete else []
        ready = []
        while (trainer := self._next(self._staleness)) is not None:
            ready += self._applied([trainer])
        return ready

    def _next(self, bound: int) -> int | None:
        """Return the trainer whose gradient is applied next, the oldest first."""
        for trainer in sorted(self._waiting, key=lambda trainer: self._versions[trainer]):
            others = [version for other, version in self._versions.items() if other != trainer]
            if may_apply(self._version, others, bound):
                return trainer
        return None

    def _applied(self, trainers: list[int]) -> list[_Reply]:
        """Apply one update with the gradients of these trainers."""
        pushes = [self._waiting.pop(trainer) for trainer in trainers]
        stale = [self._version - self._versions[trainer] for trainer in trainers]
        try:
            self._store.update([push.gradients for push in pushes])
        except Exception as error:  # noqa: BLE001 - an optimizer may raise anything, and all waiting trainers have to get it
            return [(push, error) for push in pushes]
        self._version += 1
        self._counts = self._counts.and_of(stale)
        self._versions.update(dict.fromkeys(trainers, self._version))
        answer = Answer(self._version, self._store.copy(), self._stopping)
        return [(push, answer) for push in pushes]

    @staticmethod
    def _send(ready: list[_Reply]) -> None:
        """Send the replies, outside of the lock: callbacks of the futures run here."""
        for push, answer in ready:
            if isinstance(answer, Exception):
                push.answer.set_exception(answer)
            else:
                push.answer.set_result(answer)
