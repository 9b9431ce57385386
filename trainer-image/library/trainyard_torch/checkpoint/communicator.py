"""Exchange of small Python objects among all processes of a training, over gloo, so that no process waits for a device. Not thread-safe."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist

from trainyard_torch.process_group import control_group, default_group, destroy
from trainyard_torch.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class RankFailedError(Exception):
    """A function failed on at least one process. The message has each error with its rank.

    Attributes:
        kinds: the names of the exception classes.
    """

    def __init__(self, text: str, kinds: set[str]) -> None:
        super().__init__(text)
        self.kinds = kinds


class Communicator:
    """The processes of the default group, or only this one if there is no group. Create it on all processes at the same time.

    Communicators of the training thread share the control group (`process_group.control_group`).

    Args:
        timeout: the seconds that they wait for each other at least; by default torch's half an hour.
        borrow: use the default group itself if it has gloo, for a few exchanges in the training thread. So a program that only exports
            creates no group.
        threaded: create a group of its own, for another thread than the one that trains. Its timeout is `timeout`. It stays until the
            program ends unless `close` is called.

    Attributes:
        rank: the rank, from 0 on.
        world_size: the number of processes.
        group: the group for torch.distributed.checkpoint; None if there is no other process.
    """

    def __init__(self, timeout: float | None = None, *, borrow: bool = False, threaded: bool = False) -> None:
        alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
        self.rank = 0 if alone else dist.get_rank()
        self.world_size = 1 if alone else dist.get_world_size()
        bound = None if timeout is None else timedelta(seconds=timeout)
        self.group = None if alone else _group(bound, borrow=borrow, threaded=threaded)
        self._owns_group = threaded
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._own_value = 0
        """The value that a single process broadcast to itself."""
        self._throttle = Throttle()

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes by rank. A collective: all processes must call it."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def run_on_rank0(self, act: Callable[[], T]) -> T:
        """Call a function on rank 0 alone, and return its result on all processes.

        Raises:
            Exception: the exception of rank 0, on all processes.
        """
        found: T | None = None
        wrong: Exception | None = None
        if self.rank == 0:
            try:
                found = act()
            except Exception as error:  # noqa: BLE001 - any error has to reach the waiting processes
                wrong = error
        answer = [found, wrong]
        if self.group is not None:
            dist.broadcast_object_list(answer, src=0, group=self.group)
        found, wrong = cast("tuple[T, Exception | None]", answer)
        if wrong is not None:
            raise wrong
        return found

    def run_on_all(self, act: Callable[[], T]) -> list[T]:
        """Call a function on each process, and return all results by rank.

        Raises:
            RankFailedError: the function failed on some process. All get the same message; `kinds` holds the exception classes.
        """
        found: T | None = None
        kind, wrong = "", ""
        try:
            found = act()
        except Exception as error:  # noqa: BLE001 - as above
            kind, wrong = type(error).__name__, f"rank {self.rank}: {str(error) or type(error).__name__}"
        values = self.gather((found, kind, wrong))
        if failures := [text for *_, text in values if text]:
            raise RankFailedError("; ".join(failures), {kind for _, kind, _ in values if kind})
        return [cast("T", value) for value, *_ in values]

    def all_true(self, value: bool) -> bool:  # noqa: FBT001 - the only argument
        """Return whether the value is true on all processes. A collective: all processes must call it."""
        if self.group is None:
            return value
        vote = torch.tensor([value], dtype=torch.uint8)
        dist.all_reduce(vote, dist.ReduceOp.MIN, group=self.group)
        return bool(vote[0])

    def broadcast_async(self, value: int) -> None:
        """Start to broadcast rank 0's value, from 0 to 255, without waiting. Call it on all processes in each step.

        If steps are short, most values are skipped, and a later one is sent.
        """
        if self.group is not None and not self._throttle.due():
            return
        if self.group is None:
            self._own_value = value
            return
        poll = torch.tensor([value, self._throttle.proposal()], dtype=torch.uint8)
        self._pending = dist.broadcast(poll, src=0, group=self.group, async_op=True), poll

    def poll(self) -> int:
        """Return the value that rank 0 passed to the last `broadcast_async`; 0 if there was none or it was skipped."""
        if self._pending is None:
            value, self._own_value = self._own_value, 0
            return value
        (work, poll), self._pending = self._pending, None
        work.wait()
        self._throttle.agree(int(poll[1]))
        return int(poll[0])

    def close(self) -> None:
        """Destroy its own group in this process, if it has one. No thread may use it any more."""
        if self.group is not None and self._owns_group:
            destroy(self.group)


def _group(timeout: timedelta | None, *, borrow: bool, threaded: bool) -> dist.ProcessGroup:
    if threaded:
        return dist.new_group(backend="gloo", timeout=timeout, group_desc="checkpoint")
    lent = borrow and "cpu:gloo" in dist.get_backend_config()
    return default_group() if lent else control_group(timeout)
