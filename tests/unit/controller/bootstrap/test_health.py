"""The age of watches beyond their normal silence."""

import asyncio

from prometheus_client import CollectorRegistry

from trainyard.controller.bootstrap.health import Health, Watch
from trainyard.kube.permissions import PermissionTracker


def test_periodic_list_ages_only_when_due() -> None:
    ages = {"pods": 40.0, "jobs": 290.0}
    registry = CollectorRegistry()
    watches = [
        Watch("pods", None, asyncio.Event(), lambda: ages["pods"]),
        Watch("jobs", "lab", asyncio.Event(), lambda: ages["jobs"], quiet_seconds=300.0),
        Watch("jobs", "team", asyncio.Event(), lambda: 12.0, quiet_seconds=300.0),
    ]
    Health(watches, lambda: 0.0, 120.0, PermissionTracker(), lambda: "", lambda: "", registry)

    def age(resource: str) -> float | None:
        return registry.get_sample_value("trainyard_watch_age_seconds", {"resource": resource})

    assert (age("pods"), age("jobs")) == (40, 0)
    ages["jobs"] = 350.0
    assert age("jobs") == 50
