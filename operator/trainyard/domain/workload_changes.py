"""What the operator writes to the Workload of a job, as values: one change is one patch. Pure data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PodSet:
    """The pods of one role, as a Workload asks for them."""

    role: str
    count: int
    min_count: int | None = None
    """The fewest with which the job can start; None: all."""


@dataclass(frozen=True, slots=True)
class Adapt:
    """Adapt a Workload without quota to the job: its queue, its priority, its pods."""


@dataclass(frozen=True, slots=True)
class Activate:
    """Set `spec.active`. Kueue evicts a Workload that is not active, and never admits it."""

    active: bool


@dataclass(frozen=True, slots=True)
class ReleaseQuota:
    """Give the quota back, after an eviction, once no pod uses it any more."""

    reason: str
    """Kueue's reason for the eviction."""
    message: str
    requeued: bool
    """Whether the Workload may be admitted again at once. Otherwise Kueue decides when."""


@dataclass(frozen=True, slots=True)
class ReportPodsReady:
    """Set the condition PodsReady, by which Kueue evicts a Workload whose pods do not start."""

    ready: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ReclaimPods:
    """Report pods that are done and do not come back: their quota is free."""

    counts: tuple[tuple[str, int], ...]
    """By role."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Report that the job has ended. All quota is free."""

    reason: str
    """Succeeded, Failed or FailedToStart."""
    message: str


@dataclass(frozen=True, slots=True)
class DropFinalizer:
    """Let Kubernetes delete the Workload."""


WorkloadChange = Adapt | Activate | ReleaseQuota | ReportPodsReady | ReclaimPods | Finish | DropFinalizer
