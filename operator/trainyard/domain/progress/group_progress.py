"""Combine the reports of the workers' agents into the progress of the group. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from math import inf
from statistics import fmean, median
from typing import Final

from trainyard.api.progress import Checkpointed, MeasuredProgress, Progress
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import RankProgress

_COMBINED_BY: Final[Mapping[str, Callable[[Iterable[float]], float]]] = {
    "samples_per_second": sum,
    "tokens_per_second": sum,
    "memory_bytes": max,
    "gemm_seconds": max,
    "warm_bytes": sum,
}
"""How the numbers of the ranks are combined where that is not their mean."""


def progress(snapshot: Snapshot, now: datetime) -> Progress | None:
    """Return the progress that the current attempt has reported, or the stored one until there is a report."""
    before = snapshot.job.status.progress
    ranks = [rank for report in snapshot.attempt_reports for rank in report.ranks]
    if not ranks:
        return before
    seen = _combined(ranks, before.checkpoint if before else None, now)
    same = before is not None and before.evolve(updated_at=now) == seen
    return before if same else seen


def last_step_of(snapshot: Snapshot, worker: int) -> int | None:
    """Return the furthest step that a rank of this worker has reported in the current attempt."""
    reports = (report for report in snapshot.attempt_reports if report.index == worker)
    return max((rank.step for report in reports for rank in report.ranks if rank.step is not None), default=None)


def _combined(ranks: Sequence[RankProgress], checkpoint: Checkpointed | None, now: datetime) -> Progress:
    """Combine the ranks. The group has the step of its last rank: what only some ranks have completed is repeated after a restart."""
    last = min(ranks, key=lambda rank: -inf if rank.step is None else rank.step)
    steps = [rank.step for rank in ranks if rank.step is not None]
    totals = [rank.total_steps for rank in ranks if rank.total_steps is not None]
    losses = [rank.loss for rank in ranks if rank.loss is not None]
    took = [rank.step_seconds for rank in ranks if rank.step_seconds is not None]
    fastest, slowest = _spread(ranks)
    step, total = min(steps, default=None), max(totals, default=None)
    return Progress(
        step=step,
        total_steps=total,
        percent=min(100, 100 * step // total) if step is not None and total else None,
        phase=last.phase,
        loss=float(f"{fmean(losses):.6g}") if losses else None,
        step_seconds=float(f"{median(took):.4g}") if took else None,
        fastest_rank_seconds=fastest,
        slowest_rank_seconds=slowest,
        checkpoint=_checkpoint(ranks, checkpoint, now),
        measured=_measured([rank.measured for rank in ranks]),
        updated_at=now,
    )


def _spread(ranks: Sequence[RankProgress]) -> tuple[float | None, float | None]:
    """Return the step time of the fastest and the slowest rank. Where ranks wait for each other, only their own seconds differ."""
    own = [rank.compute_seconds for rank in ranks if rank.compute_seconds is not None]
    took = own if len(own) == len(ranks) else [rank.step_seconds for rank in ranks if rank.step_seconds is not None]
    if len(took) < 2:
        return None, None
    return float(f"{min(took):.2g}"), float(f"{max(took):.2g}")


def _checkpoint(ranks: Sequence[RankProgress], before: Checkpointed | None, now: datetime) -> Checkpointed | None:
    """Return the newest checkpoint of the ranks, or the stored one where none is reported: a new attempt has written none yet."""
    known = [rank.measured for rank in ranks if "checkpoint_step" in rank.measured]
    if not known:
        return before
    newest = max(known, key=lambda measured: measured["checkpoint_step"])
    step, took = int(newest["checkpoint_step"]), newest.get("checkpoint_seconds")
    if before is not None and before.step == step:
        return before
    return Checkpointed(step=step, seconds=None if took is None else float(f"{took:.4g}"), time=now)


def _measured(ranks: Sequence[Mapping[str, float]]) -> MeasuredProgress | None:
    values = {name: [rank[name] for rank in ranks if name in rank] for name in MeasuredProgress.model_fields}
    known = {name: _COMBINED_BY.get(name, fmean)(numbers) for name, numbers in values.items() if numbers}
    return MeasuredProgress(**{name: float(f"{number:.4g}") for name, number in known.items()}) if known else None
