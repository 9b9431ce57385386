"""Check whether the operator still receives events and makes progress, for the probes. Reads ages, changes nothing."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from trainyard.kube.permissions import Permission, PermissionTracker, remedy
from trainyard.kube.resource import namespace_label

_WATCH_VERBS = frozenset({"list", "watch"})
"""Both are requested continuously, so a grant is noticed. A verb that is rarely requested would count as missing until
its next request.
"""


@dataclass(frozen=True, slots=True)
class Watch:
    """The watch on one resource."""

    resource: str
    namespace: str | None
    """None: all namespaces."""
    synced: asyncio.Event
    age: Callable[[], float]
    """Seconds since the API server last answered."""
    quiet_seconds: float = 0.0
    """Seconds of silence that are normal for this watch."""

    @override
    def __str__(self) -> str:
        return f"{self.resource} in {namespace_label(self.namespace)}"

    def depends_on(self, permission: Permission) -> bool:
        """Return whether this watch receives nothing without this permission."""
        return (permission.resource, permission.namespace) == (
            self.resource,
            self.namespace,
        ) and permission.verb in _WATCH_VERBS

    def is_forbidden(self, permissions: PermissionTracker) -> bool:
        """Return whether this watch is silent because the account lacks a permission."""
        return any(map(self.depends_on, permissions.missing()))


@dataclass(frozen=True, eq=False)
class Health(Collector):
    """The state of all watches, of the longest reconcile, and of the election."""

    watches: Sequence[Watch]
    longest_reconcile: Callable[[], float]
    stale_seconds: float
    permissions: PermissionTracker
    leadership: Callable[[], str]
    """Describe this process's part in the election; empty if there is no election."""
    certificate: Callable[[], str]
    """Return why the coordinator has no certificate; empty if it has one or needs none."""
    registry: CollectorRegistry = field(repr=False)

    def __post_init__(self) -> None:
        self.registry.register(self)

    def problems(self) -> list[str]:
        """Return one sentence for each problem that a restart may fix. Waiting for the first list is not one of them."""
        problems = [
            f"the watch on {watch} has been silent for {watch.age():.0f} s"
            for watch in self.watches
            if watch.age() > self.stale_seconds + watch.quiet_seconds and not watch.is_forbidden(self.permissions)
        ]
        if (seconds := self.longest_reconcile()) > self.stale_seconds:
            problems.append(f"a reconcile has been running for {seconds:.0f} s")
        return problems

    def obstacles(self) -> list[str]:
        """Return one sentence for each obstacle that a restart cannot fix: missing permissions, pending first lists, and a
        missing certificate.
        """
        unlisted = [f"{watch} have not been listed yet" for watch in self.watches if not watch.synced.is_set()]
        missing = map(remedy, filter(self._is_essential, sorted(self.permissions.missing(), key=str)))
        return [*missing, *unlisted, *filter(None, [self.certificate()])]

    def _is_essential(self, permission: Permission) -> bool:
        """Return whether the operator cannot watch or lead without this permission. Any other missing one affects
        single jobs, whose status reports it.
        """
        return permission.resource == "leases.coordination.k8s.io" or any(
            watch.depends_on(permission) for watch in self.watches
        )

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the age of each resource's watch; of several namespaces the oldest. Normal silence does not count."""
        ages = GaugeMetricFamily(
            "trainyard_watch_age_seconds",
            "Seconds since the API server last answered a watch; for TrainingJobs, since their next list was due",
            labels=["resource"],
        )
        for resource in dict.fromkeys(watch.resource for watch in self.watches):
            age = max(watch.age() - watch.quiet_seconds for watch in self.watches if watch.resource == resource)
            ages.add_metric([resource], max(0.0, age))
        yield ages
