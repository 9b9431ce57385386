"""Whether the operator still hears and still works: what the probes ask. Reads ages, changes nothing."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from trainyard.kube.permissions import Permission, PermissionTracker, remedy
from trainyard.kube.resource import namespace_label

_NEEDED_TO_KNOW = frozenset({"list", "watch"})
"""Both are asked for all the time, so that a grant is noticed. What is only now and then asked for would count as missing until then."""


@dataclass(frozen=True, slots=True)
class Watch:
    """One source of news."""

    resource: str
    namespace: str | None
    """None: all namespaces."""
    synced: asyncio.Event
    age: Callable[[], float]
    """Seconds since its last sign of life."""
    rest: float = 0.0
    """For so many seconds it is silent by its nature."""

    @override
    def __str__(self) -> str:
        return f"{self.resource} in {namespace_label(self.namespace)}"

    def needs(self, right: Permission) -> bool:
        """Whether it hears nothing without this right."""
        return (right.resource, right.namespace) == (self.resource, self.namespace) and right.verb in _NEEDED_TO_KNOW

    def denied(self, permissions: PermissionTracker) -> bool:
        """Whether it is silent because the account may not hear."""
        return any(map(self.needs, permissions.missing()))


@dataclass(frozen=True, eq=False)
class Health(Collector):
    """The state of all watches, of the slowest pass, and of the election."""

    watches: Sequence[Watch]
    longest_pass: Callable[[], float]
    stale_seconds: float
    permissions: PermissionTracker
    standing: Callable[[], str]
    """Whether this process leads, in a sentence; empty where there is no election."""
    registry: CollectorRegistry = field(repr=False)

    def __post_init__(self) -> None:
        self.registry.register(self)

    def troubles(self) -> list[str]:
        """What a restart may mend, a sentence each; empty where all is well. Waiting for the first list is no trouble yet."""
        stale = [
            f"the watch on {watch} has been silent for {watch.age():.0f} s"
            for watch in self.watches
            if watch.age() > self.stale_seconds + watch.rest and not watch.denied(self.permissions)
        ]
        if (seconds := self.longest_pass()) > self.stale_seconds:
            stale.append(f"a pass has been running for {seconds:.0f} s")
        return stale

    def waiting(self) -> list[str]:
        """What keeps it from its work and no restart can mend: rights that are missing, lists that are still to come."""
        unheard = [f"{w} have not been listed yet" for w in self.watches if not w.synced.is_set()]
        return [*map(remedy, filter(self._blinding, sorted(self.permissions.missing(), key=str))), *unheard]

    def _blinding(self, right: Permission) -> bool:
        """Without which it does not hear, or cannot lead. What else is missing stops one job or another, and their status says so."""
        return right.resource == "leases.coordination.k8s.io" or any(watch.needs(right) for watch in self.watches)

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The ages, for alerts; of several namespaces the oldest. What is silent by its nature has an age only thereafter."""
        ages = GaugeMetricFamily(
            "trainyard_watch_age_seconds",
            "Seconds since a watch was last heard; of TrainingJobs, since their next list was due",
            labels=["resource"],
        )
        for resource in dict.fromkeys(watch.resource for watch in self.watches):
            silent = max(watch.age() - watch.rest for watch in self.watches if watch.resource == resource)
            ages.add_metric([resource], max(0.0, silent))
        yield ages
