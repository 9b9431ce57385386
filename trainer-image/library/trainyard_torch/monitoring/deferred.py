"""Numbers that lie on a GPU, read when they have arrived: neither host nor GPU ever waits for one. Must not synchronise anything."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import torch
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WAITING = 8
"""Numbers that are under way at once. Where the host is further ahead of its GPU, the ones that follow are passed over."""


class Pending(Protocol):
    """A number that is under way."""

    def ready(self) -> bool:
        """Whether it has arrived. Does not wait."""

    def value(self) -> float:
        """The number, once it has."""


class Copied(Pending):
    """A tensor with one element, copied into memory of the host in the order of the GPU's work: what becomes of the tensor later does not count."""

    def __init__(self, tensor: torch.Tensor) -> None:
        # gpu-only: asynchronous copy of the loss to the host
        self._host = torch.empty((), dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(tensor.device))

    @override
    def ready(self) -> bool:
        return bool(self._copied.query())

    @override
    def value(self) -> float:
        return float(self._host)


class Worked(Pending):
    """Seconds of the host, and of the GPU between pairs of events on one stream, which were made with `enable_timing`."""

    def __init__(self, host: float, spans: Sequence[tuple[torch.cuda.Event, torch.cuda.Event]]) -> None:
        self._host, self._spans = host, spans

    @override
    def ready(self) -> bool:
        # On one stream: with the last all have happened.
        return bool(self._spans[-1][1].query())

    @override
    def value(self) -> float:
        return self._host + sum(float(begin.elapsed_time(end)) for begin, end in self._spans) / 1000


class DeferredScalars:
    """One number of each step, the newest that has arrived.

    Args:
        copied: how one is fetched from a GPU.
    """

    def __init__(self, copied: Callable[[torch.Tensor], Pending] = Copied) -> None:
        self._copied = copied
        self._pending: deque[Pending] = deque()
        self._newest: float | None = None

    def put(self, name: str, value: float | torch.Tensor | None) -> None:
        """A number, or a tensor with one element. What is on the host is read at once, what is on a GPU when it has arrived.

        Raises:
            ValueError: it has more or fewer elements than one, or is spread over processes. `name` is what it is called then.
        """
        if value is None:
            return
        if isinstance(value, torch.Tensor):
            check(name, value)
            if value.device.type == "cuda":
                if len(self._pending) < WAITING:
                    self.wait(self._copied(value))
                return
            value = value.item()
        self._pending.clear()
        self._newest = float(value)

    def wait(self, pending: Pending) -> None:
        """Report this number when it has arrived, unless too many are pending."""
        if len(self._pending) < WAITING:
            self._pending.append(pending)

    def arrived(self) -> list[float]:
        """Those that have arrived since this was asked last, or since then were given on the host."""
        found = []
        while self._pending and self._pending[0].ready():
            found.append(self._pending.popleft().value())
        if found:
            self._newest = found[-1]
        return found

    @property
    def newest(self) -> float | None:
        """The last that has arrived; None before the first."""
        if self._pending:
            self.arrived()
        return self._newest


def check(name: str, value: Any) -> None:
    """That this tensor is one number, here.

    Raises:
        ValueError: it is not.
    """
    # A DTensor: each process has its part, and to put them together is a collective, which is not to be had in passing.
    if hasattr(value, "full_tensor"):
        raise ValueError(f"{name} is a DTensor, spread over processes: give {name}.full_tensor(), on all of them")
    if value.numel() != 1:
        raise ValueError(f"{name} must be one number, got a tensor of shape {tuple(value.shape)}")
