"""What is told of watches: how long one has been silent beyond its nature."""

import asyncio

from prometheus_client import CollectorRegistry

from trainyard.controller.bootstrap.health import Health, Watch
from trainyard.kube.permissions import PermissionTracker


def test_what_is_listed_now_and_then_has_an_age_only_when_its_list_is_due() -> None:
    ages = {"pods": 40.0, "jobs": 290.0}
    registry = CollectorRegistry()
    watches = [
        Watch("pods", None, asyncio.Event(), lambda: ages["pods"]),
        Watch("jobs", "lab", asyncio.Event(), lambda: ages["jobs"], rest=300.0),
        Watch("jobs", "team", asyncio.Event(), lambda: 12.0, rest=300.0),
    ]
    Health(watches, lambda: 0.0, 120.0, PermissionTracker(), lambda: "", registry)

    def told(resource: str) -> float | None:
        return registry.get_sample_value("trainyard_watch_age_seconds", {"resource": resource})

    assert (told("pods"), told("jobs")) == (40, 0)
    ages["jobs"] = 350.0
    assert told("jobs") == 50
