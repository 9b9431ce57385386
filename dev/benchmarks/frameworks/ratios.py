"""How many times as long the peer takes as this operator. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from dev.benchmarks.recovery.results import Row
from dev.benchmarks.recovery.table import OURS


@dataclass(frozen=True, slots=True)
class Ratio:
    """One fault under both systems, by the medians of both."""

    fault: str
    peer: str
    times: float | None
    """The peer's seconds divided by ours; None if one of them never recovers."""
    ahead: bool
    """Whether this operator recovers sooner."""

    @override
    def __str__(self) -> str:
        if self.times is None:
            return f"{self.fault}: {f'{self.peer} never recovers' if self.ahead else f'{OURS} never recovers'}"
        return f"{self.fault}: {self.peer} takes {self.times:.1f} times as long"


def ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Return a ratio for each fault that both systems have been measured with."""
    ours = {row.fault: row.p50_s for row in rows if row.system == OURS}
    return [_ratio(row, ours[row.fault]) for row in rows if row.system != OURS and row.fault in ours]


def _ratio(peer: Row, ours: float | None) -> Ratio:
    if ours is None or peer.p50_s is None:
        return Ratio(peer.fault, peer.system, None, ahead=ours is not None)
    return Ratio(peer.fault, peer.system, peer.p50_s / ours, ahead=ours < peer.p50_s)
