"""Metrics of one process at one time, and their serialization. Pure."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1


@dataclass(frozen=True, slots=True)
class RankMetrics:
    """The metrics of one rank. None: not known, or not applicable.

    Attributes:
        rank: the rank, from 0 on.
        step: the last finished step.
        time: its end, in seconds since 1970.
        steps, samples, tokens: the totals of this process.
        phases: the seconds in each phase, by name.
        memory: bytes, by `allocated`, `reserved` and `peak` of the device and `host`.
        step_seconds, compute_seconds: the medians over the last steps.
        gemm_seconds: the time of a GPU for the same matrix products: the median of the last ones.
        steps_per_second, samples_per_second, tokens_per_second: the rates over the last steps.
        shares: the shares of the phases in the time of the last steps.
        mfu: the share of the device's peak.
        loss, grad_norm: the last known values.
        loss_share: the weight of the loss in the mean over the processes, 1 if all have equally many samples of a step.
        communication, exposed_communication: the shares of the time of the last profiled steps.
        checkpoint_step, checkpoint_seconds: the step of the newest stored checkpoint, and its duration. Only rank 0 has them.
        checkpoint_time: the time of that checkpoint, in seconds since 1970.
    """

    rank: int
    step: int
    time: float
    steps: int
    samples: int = 0
    tokens: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    step_seconds: float | None = None
    compute_seconds: float | None = None
    gemm_seconds: float | None = None
    steps_per_second: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    mfu: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    loss_share: float = 1.0
    communication: float | None = None
    exposed_communication: float | None = None
    checkpoint_step: int | None = None
    checkpoint_seconds: float | None = None
    checkpoint_time: float | None = None

    @property
    def measured(self) -> dict[str, float]:
        """Return the metrics that the agent gets, by the names of `trainyard_agent.progress`. Phases without time have a share of 0."""
        collectives = self.shares.get("communication") if self.communication is None else self.communication
        known = {
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu,
            "grad_norm": self.grad_norm,
            "communication_share": collectives,
            "data_share": self.shares.get("data", 0.0) if self.shares else None,
            "checkpoint_share": self.shares.get("checkpoint", 0.0) if self.shares else None,
            "memory_bytes": self.memory.get("peak", self.memory.get("host")),
            "gemm_seconds": self.gemm_seconds,
            "checkpoint_step": self.checkpoint_step,
            "checkpoint_seconds": self.checkpoint_seconds,
        }
        return {name: number for name, number in known.items() if number is not None}

    def text(self) -> bytes:
        """Return a checksum line and JSON, so that a reader can detect a partial write."""
        content = json.dumps({"format": FORMAT, **asdict(self)}).encode()
        return b"%08x %d\n%s" % (zlib.crc32(content), len(content), content)

    @classmethod
    def parse(cls, text: bytes) -> RankMetrics | None:
        """Parse the metrics; anything after them is ignored. None: the write was partial, or the text is of another release."""
        head, _, rest = text.partition(b"\n")
        try:
            checksum, length = head.split()
            content = rest[: int(length)]
            if zlib.crc32(content) != int(checksum, 16):
                return None
            fields = json.loads(content)
            return cls(**fields) if fields.pop("format") == FORMAT else None
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
