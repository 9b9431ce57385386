"""Time matrix products (GEMM) on this process's GPU, for where the time of its steps does not show whether it is slow.

With FSDP, tensor parallelism and pipelines, each pass waits for other processes. The same products run between two steps, now and then.
Nothing here synchronizes.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

import torch

from trainyard_torch.errors import first_line
from trainyard_torch.monitoring.deferred import DeferredScalars, Worked
from trainyard_torch.monitoring.flops import peak

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)
DEFAULT_INTERVAL_SECONDS = 120.0
SIZE = 4096
"""The rows and columns of the matrices. Two of them take 64 MiB, which the allocator gets back at once."""
PRODUCT_FLOPS = 2.0 * SIZE**3
UNIT_FLOPS = 50e12
"""The operations whose time is reported, whatever the model of the GPU. Dense fp16 on an H100: about a tenth of a second."""
TARGET_SECONDS, REACHED_SHARE = 0.1, 0.6
"""How long the products may take, and the share of the data sheet's peak that they reach."""
UNKNOWN_PEAK = 30e12
"""FLOP/s of a device that is not known, for the number of its products."""
MAX_PRODUCTS = 800
"""CUDA queues about a thousand kernels. With more, the host would wait."""
REMEMBERED = 3
"""The median of so many times is reported: one that shares the GPU with something else does not count."""


class GemmTimer:
    """Times matrix products now and then. Used by the training thread.

    All processes do so after the same step, up to the difference of their clocks: the group waits for each that does it alone.

    Args:
        device: the GPU.
        interval: seconds between two times.
    """

    def __init__(self, device: torch.device, interval: float = DEFAULT_INTERVAL_SECONDS) -> None:
        self._device, self._interval = device, interval
        self._period: int | None = None
        self._products = 0
        self._deferred = DeferredScalars()
        self._last: deque[float] = deque(maxlen=REMEMBERED)

    def step(self, now: float) -> None:
        """Start the products after a finished step, if they are due. Errors are logged, and end the products and not the training.

        Args:
            now: seconds since 1970.
        """
        period = int(now / self._interval)
        if period == self._period:
            return
        first, self._period = self._period is None, period
        # The first steps select kernels and allocate memory.
        if first or math.isinf(self._interval):
            return
        try:
            self._start()
        except RuntimeError as error:
            self._interval = math.inf
            logger.warning("no matrix products are timed any more: %s", first_line(error))

    @property
    def seconds(self) -> float | None:
        """Seconds for `UNIT_FLOPS` operations, as the median of the last times. None: not enough are known."""
        self._last.extend(self._deferred.arrived())
        return median(self._last) if len(self._last) == REMEMBERED else None

    def _start(self) -> None:
        """Launch the products. Their time arrives when the GPU has done them."""
        if not self._products:
            # gpu-only: the speed of the device
            self._products = products(peak(torch.cuda.get_device_name(self._device)))
        factor = _matrix(self._device)
        result = factor @ factor
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(self._products):
            torch.mm(factor, factor, out=result)
        end.record()
        self._deferred.wait(Worked(0.0, [(begin, end)], scale=UNIT_FLOPS / (self._products * PRODUCT_FLOPS)))


def products(peak_flops: float | None) -> int:
    """Return the number of products that take about `TARGET_SECONDS` on a device with this peak in FLOP/s."""
    reached = REACHED_SHARE * (peak_flops or UNKNOWN_PEAK)
    return min(MAX_PRODUCTS, round(TARGET_SECONDS * reached / PRODUCT_FLOPS))


def _matrix(device: torch.device) -> Tensor:
    """Return a matrix without random numbers, whose generator belongs to the program. Zeros would take less power than a model does."""
    return torch.linspace(0, 2000, SIZE * SIZE, dtype=torch.float16, device=device).sin_().view(SIZE, SIZE)
