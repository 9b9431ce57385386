"""Read scalars from a GPU asynchronously: neither the host nor the GPU waits. Nothing here may synchronize them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import torch
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WAITING = 8
"""The most scalars that are pending at once. If the host is further ahead of its GPU, later scalars are skipped."""


class Pending(Protocol):
    """A scalar that is being copied to the host."""

    def ready(self) -> bool:
        """Return whether it has arrived. Does not wait."""

    def value(self) -> float:
        """Return the scalar, once it has arrived."""


class Copied(Pending):
    """A tensor with one element that is copied to host memory in stream order. Later changes of the tensor have no effect."""

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
    """Seconds of the host plus GPU seconds between pairs of events on one stream, times `scale`. The events have `enable_timing`."""

    def __init__(
        self, host: float, spans: Sequence[tuple[torch.cuda.Event, torch.cuda.Event]], scale: float = 1.0
    ) -> None:
        self._host, self._spans, self._scale = host, spans, scale

    @override
    def ready(self) -> bool:
        # All events are on one stream: after the last one, all have happened.
        return bool(self._spans[-1][1].query())

    @override
    def value(self) -> float:
        device = sum(float(begin.elapsed_time(end)) for begin, end in self._spans) / 1000
        return (self._host + device) * self._scale


class DeferredScalars:
    """The newest scalar of a series with one scalar per step.

    Args:
        copied: starts the copy of a tensor from a GPU.
    """

    def __init__(self, copied: Callable[[torch.Tensor], Pending] = Copied) -> None:
        self._copied = copied
        self._pending: deque[Pending] = deque()
        self._newest: float | None = None

    def put(self, name: str, value: float | torch.Tensor | None) -> None:
        """Add a number, or a tensor with one element. A value on the host is read at once, a value on a GPU when it has arrived.

        Raises:
            ValueError: the tensor does not have exactly one element, or is a DTensor. The message calls it `name`.
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
        """Add a pending scalar, unless too many are pending."""
        if len(self._pending) < WAITING:
            self._pending.append(pending)

    def arrived(self) -> list[float]:
        """Return the scalars that have arrived since the last call."""
        found = []
        while self._pending and self._pending[0].ready():
            found.append(self._pending.popleft().value())
        if found:
            self._newest = found[-1]
        return found

    @property
    def newest(self) -> float | None:
        """The newest scalar that has arrived; None before the first."""
        if self._pending:
            self.arrived()
        return self._newest


def check(name: str, value: Any) -> None:
    """Check that a tensor has exactly one element on this process.

    Raises:
        ValueError: it has more or fewer elements, or is a DTensor.
    """
    # Each process has a shard of a DTensor. Gathering it is a collective, which must not happen here.
    if hasattr(value, "full_tensor"):
        raise ValueError(f"{name} is a DTensor, spread over processes: give {name}.full_tensor(), on all of them")
    if value.numel() != 1:
        raise ValueError(f"{name} must be one number, got a tensor of shape {tuple(value.shape)}")
