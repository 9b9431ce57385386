"""Whether the operator still hears and still works: what the probes ask. Reads ages, changes nothing."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override


@dataclass(frozen=True, slots=True)
class Watch:
    """One source of news."""

    synced: asyncio.Event
    age: Callable[[], float]
    """Seconds since its last sign of life."""


@dataclass(frozen=True, eq=False)
class Health(Collector):
    """The state of all watches and of the slowest pass."""

    watches: Mapping[str, Watch]
    longest_pass: Callable[[], float]
    stale_seconds: float
    registry: CollectorRegistry = field(repr=False)

    def __post_init__(self) -> None:
        self.registry.register(self)

    def troubles(self) -> list[str]:
        """What is wrong, a sentence each; empty where all is well. Waiting for the first list is no trouble yet."""
        stale = [
            f"the watch on {name} has been silent for {watch.age():.0f} s"
            for name, watch in self.watches.items()
            if watch.age() > self.stale_seconds
        ]
        if (seconds := self.longest_pass()) > self.stale_seconds:
            stale.append(f"a pass has been running for {seconds:.0f} s")
        return stale

    def waiting(self) -> list[str]:
        """What has not been listed yet."""
        return [f"{name} have not been listed yet" for name, w in self.watches.items() if not w.synced.is_set()]

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The ages, for alerts."""
        ages = GaugeMetricFamily(
            "trainyard_watch_age_seconds", "Seconds since a watch was last heard", labels=["resource"]
        )
        for name, watch in self.watches.items():
            ages.add_metric([name], watch.age())
        yield ages
