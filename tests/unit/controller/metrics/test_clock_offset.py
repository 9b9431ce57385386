"""All times that the operator compares or writes come from the API server's clock."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dev.benchmarks.agents.credentials import certificate
from tests.support.fake_api import FakeApi
from trainyard.controller.bootstrap.assembly import assemble
from trainyard.controller.bootstrap.operator import Operator
from trainyard.controller.bootstrap.settings import Settings
from trainyard.engine.queue_metrics import EngineMetrics
from trainyard.kube.clock import ServerClock

SERVER = datetime(2026, 11, 23, 12, 0, 0, 500_000, tzinfo=UTC)


@pytest.fixture
async def assembled(api: FakeApi, tmp_path: Path) -> Operator:
    """Return an operator on a machine that is ten minutes ahead and has just received an answer."""
    clock = ServerClock(wall=lambda: SERVER.timestamp() + 600, steady=lambda: 0.0)
    clock.observe("Mon, 23 Nov 2026 12:00:00 GMT", 0.0)
    certificate(tmp_path)
    settings = Settings(coordinator_url="https://localhost:8443", coordinator_tls=tmp_path, lease_namespace="lab")
    registry = CollectorRegistry()
    return assemble(settings, api.session(clock=clock), EngineMetrics(registry, "trainingjob"), registry)


@pytest.mark.parametrize(
    "time",
    [
        lambda made: made.reconciler.now(),
        lambda made: made.reconciler.events._now(),
        lambda made: made.coordinator.progress_store.now(),
        lambda made: made.coordinator.agent_registry.now(),
        lambda made: datetime.fromtimestamp(made.coordinator.verifier.now(), UTC),
        lambda made: made.elector.client.session.clock.now(),
    ],
    ids=["passes", "events", "reports", "calls", "tokens", "lease"],
)
async def test_all_parts_share_one_clock(assembled: Operator, time: Callable[[Operator], datetime]) -> None:
    assert abs((time(assembled) - SERVER).total_seconds()) < 1


async def test_stored_times_have_whole_seconds(assembled: Operator) -> None:
    assert assembled.reconciler.now() == SERVER.replace(microsecond=0)


async def test_clock_offset_is_exported(assembled: Operator) -> None:
    assert assembled.registry.get_sample_value("trainyard_clock_offset_seconds") == pytest.approx(-600, abs=1)
