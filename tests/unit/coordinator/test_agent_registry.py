from datetime import timedelta
from types import SimpleNamespace

from tests.support.jobs import NOW
from trainyard.api.agent_protocol import AgentState
from trainyard.coordinator.agent_registry import AgentRegistry
from trainyard.domain.state.worker_views import AgentView

REPORTED = AgentView(1, AgentState.RUNNING)


def test_stored_times_follow_a_clock_step() -> None:
    """Else an agent that hangs up for the moment of a new call would be away for an hour, or for less than no time."""
    at = SimpleNamespace(now=NOW, monotonic=50.0)
    agent_registry = AgentRegistry(lambda: at.now, lambda _job, _seconds: None, lambda: at.monotonic)
    assert agent_registry.since == NOW
    with agent_registry.long_poll("job", "pod", REPORTED) as call:
        at.now, at.monotonic = at.now + timedelta(seconds=300), 350.0
        at.now -= timedelta(hours=1)
        agent_registry.disconnected("job", "pod", call, None)
    at.now, at.monotonic = at.now + timedelta(seconds=5), 355.0
    agent = agent_registry.of("job", ["pod"])["pod"]
    assert agent.left_at is not None
    assert agent.since is not None
    assert (at.now - agent.left_at, at.now - agent.since) == (timedelta(seconds=5), timedelta(seconds=305))
    assert at.now - agent_registry.since == timedelta(seconds=305)


def test_small_clock_drift_changes_nothing() -> None:
    at = SimpleNamespace(now=NOW, monotonic=0.0)
    agent_registry = AgentRegistry(lambda: at.now, lambda _job, _seconds: None, lambda: at.monotonic)
    began = agent_registry.since
    at.monotonic = 0.9
    assert agent_registry.since == began


def test_refused_connections_start_no_grace_period_on_standby() -> None:
    at = SimpleNamespace(now=NOW, monotonic=0.0)
    agent_registry = AgentRegistry(lambda: at.now, lambda _job, _seconds: None, lambda: at.monotonic)
    agent_registry.restart_grace_period()
    at.now, at.monotonic = NOW + timedelta(seconds=60), 60.0
    assert agent_registry.since == at.now
    at.now, at.monotonic = NOW + timedelta(seconds=120), 120.0
    agent_registry.restart_grace_period()
    assert agent_registry.since == at.now
