"""Which sizes a group may have, by `spec.elastic` and `spec.parallelism`. Pure."""

from dataclasses import replace
from math import gcd, lcm

from trainyard.api.spec import TrainingJobSpec
from trainyard.domain.state.rank_layout import misfit, processes
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.wording import counted


def at_most(spec: TrainingJobSpec, workers: int) -> int | None:
    """The largest size that an elastic group may have, of so many workers at most; None where there is none.

    Copies of the model are never split.
    """
    if spec.elastic is None:
        return None
    whole = spec.parallelism.ranks if spec.parallelism else 1
    unit = whole // gcd(whole, processes(spec))
    if spec.elastic.sizes:
        return max((n for n in spec.elastic.sizes if n <= workers and n % unit == 0), default=None)
    unit = lcm(unit, spec.elastic.multiple_of)
    size = min(workers, spec.elastic.highest) // unit * unit
    return size if size >= spec.elastic.lowest else None


def _smallest(spec: TrainingJobSpec) -> int | None:
    """The smallest size that an elastic group may have; None where there is none."""
    bounds = spec.elastic
    if bounds is None:
        return None
    sizes = bounds.sizes or range(bounds.lowest, bounds.highest + 1)
    return next((size for size in sizes if at_most(spec, size) == size), None)


def fitted(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it is to be planned for: a group does not follow `replicas` to a size that it may not have.

    An elastic one gets the next smaller size that it may, or the smallest of all. Otherwise training would stop for what cannot be: the group keeps the size that
    it was made for, and is recovered at it; where there is none yet, none is made.
    """
    spec = snapshot.job.spec
    size = at_most(spec, spec.replicas)
    if size is None and not misfit(planned(snapshot, snapshot.size).job.spec):
        size = _smallest(spec)
    if size is not None:
        return snapshot if size == spec.replicas else replace(planned(snapshot, size), limit=_limit(spec, size))
    if not (why := misfit(spec)):
        return snapshot
    kept = planned(snapshot, snapshot.size)
    group = f"until then the group keeps its {counted(snapshot.size, 'worker')}"
    then = "no worker is started" if misfit(kept.job.spec) else group
    return replace(kept, misfit=f"{why}; {then}")


def planned(snapshot: Snapshot, workers: int) -> Snapshot:
    """The snapshot as if `replicas` were this number."""
    spec = snapshot.job.spec.evolve(replicas=workers)
    return replace(snapshot, job=replace(snapshot.job, spec=spec))


def outgrown(snapshot: Snapshot) -> str:
    """That a group which waits to grow has a size that it may not have, where `elastic` was changed meanwhile; empty where it may."""
    spec, size = snapshot.job.spec, snapshot.size
    if spec.elastic is None or at_most(spec, size) == size:
        return ""
    return f"the group has {counted(size, 'worker')}, which elastic does not allow: it trains on with them until it can grow"


def _limit(spec: TrainingJobSpec, size: int) -> str:
    elastic = spec.elastic
    if elastic and elastic.sizes:
        allowed = f"elastic.sizes are {', '.join(map(str, elastic.sizes))}"
    else:
        allowed = f"elastic.multipleOf is {elastic.multiple_of if elastic else 1}"
    whole = f", and one copy of the model takes {spec.parallelism.ranks} ranks" if spec.parallelism else ""
    return f"replicas is {spec.replicas}, and {allowed}{whole}: the group has {counted(size, 'worker')}"
