"""Choose among the sizes that `spec.elastic` and `spec.parallelism` allow. Pure."""

from dataclasses import replace
from math import gcd, lcm

from trainyard.api.spec import TrainingJobSpec
from trainyard.domain.state.rank_layout import indivisible, processes
from trainyard.domain.state.replicas import GroupSize
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.wording import counted


def largest_allowed(spec: TrainingJobSpec, workers: int) -> int | None:
    """Return the largest allowed size of an elastic group with at most so many workers; None where there is none.

    A copy of the model is never split.
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


def _smallest_allowed(spec: TrainingJobSpec) -> int | None:
    """Return the smallest allowed size of an elastic group; None where there is none."""
    bounds = spec.elastic
    if bounds is None:
        return None
    sizes = bounds.sizes or range(bounds.lowest, bounds.highest + 1)
    return next((size for size in sizes if largest_allowed(spec, size) == size), None)


def allowed_size(snapshot: Snapshot) -> GroupSize:
    """Return the group's size where all allowed workers are created at once: a size that is not allowed is not followed.

    An elastic group gets the next smaller allowed size, or the smallest of all. Any other group keeps the size for which
    it was created, and is recovered at it; where there is none yet, no worker is created.
    """
    spec, size = snapshot.job.spec, snapshot.size
    why, unstartable = indivisible(spec, size.requested), indivisible(spec, size.current)
    allowed = largest_allowed(spec, size.requested)
    if allowed is None and not unstartable:
        allowed = _smallest_allowed(spec)
    if allowed is not None:
        return size if allowed == size.requested else _limited(spec, size, allowed)
    if not why:
        return size
    group = f"until then the group keeps its {counted(size.current, 'worker')}"
    then = "no worker is started" if unstartable else group
    return replace(keep(size, size.current), allowed=size.current, invalid_because=f"{why}; {then}")


def keep(size: GroupSize, workers: int) -> GroupSize:
    """Return the size of a group that must have this number of workers now, and to which no others join."""
    return replace(size, desired=workers, target=workers)


def why_outside_limits(snapshot: Snapshot) -> str:
    """Return that a group which waits to scale up has a size that `elastic` excludes since it was changed; empty otherwise."""
    spec, size = snapshot.job.spec, snapshot.size.current
    if spec.elastic is None or largest_allowed(spec, size) == size:
        return ""
    return f"the group has {counted(size, 'worker')}, which elastic does not allow: it keeps them until it can scale up"


def _limited(spec: TrainingJobSpec, size: GroupSize, workers: int) -> GroupSize:
    current = next(filter(None, size.created_for), workers)
    limited = replace(size, allowed=workers, current=current, limited_because=_why_limited(spec, workers))
    return keep(limited, workers)


def _why_limited(spec: TrainingJobSpec, workers: int) -> str:
    elastic = spec.elastic
    if elastic and elastic.sizes:
        allowed = f"elastic.sizes are {', '.join(map(str, elastic.sizes))}"
    else:
        allowed = f"elastic.multipleOf is {elastic.multiple_of if elastic else 1}"
    whole = f", and one copy of the model needs {spec.parallelism.ranks} ranks" if spec.parallelism else ""
    return f"replicas is {spec.replicas}, and {allowed}{whole}: the group has {counted(workers, 'worker')}"
