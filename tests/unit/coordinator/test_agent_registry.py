from datetime import timedelta
from types import SimpleNamespace

from tests.support.jobs import NOW
from trainyard.coordinator.agent_registry import AgentRegistry
from trainyard.domain.state.snapshot import AgentView, Doing

SAID = AgentView(1, Doing.RUNNING)


def test_where_the_clock_is_set_all_that_is_known_goes_with_it() -> None:
    """Else an agent that hangs up for the moment of a new call would be away for an hour, or for less than no time."""
    at = SimpleNamespace(now=NOW, monotonic=50.0)
    agent_registry = AgentRegistry(lambda: at.now, lambda _job, _seconds: None, lambda: at.monotonic)
    assert agent_registry.since == NOW
    with agent_registry.long_poll("job", "pod", SAID) as call:
        at.now, at.monotonic = at.now + timedelta(seconds=300), 350.0
        at.now -= timedelta(hours=1)
        agent_registry.disconnected("job", "pod", call, None)
    at.now, at.monotonic = at.now + timedelta(seconds=5), 355.0
    agent = agent_registry.of("job", ["pod"])["pod"]
    assert agent.left_at is not None
    assert agent.since is not None
    assert (at.now - agent.left_at, at.now - agent.since) == (timedelta(seconds=5), timedelta(seconds=305))
    assert at.now - agent_registry.since == timedelta(seconds=305)


def test_a_clock_that_is_a_little_off_is_left_alone() -> None:
    at = SimpleNamespace(now=NOW, monotonic=0.0)
    agent_registry = AgentRegistry(lambda: at.now, lambda _job, _seconds: None, lambda: at.monotonic)
    began = agent_registry.since
    at.monotonic = 0.9
    assert agent_registry.since == began


def test_who_stands_by_does_not_begin_to_listen_because_many_call() -> None:
    at = SimpleNamespace(now=NOW, monotonic=0.0)
    agent_registry = AgentRegistry(lambda: at.now, lambda _job, _seconds: None, lambda: at.monotonic)
    agent_registry.restart_grace_period()
    at.now, at.monotonic = NOW + timedelta(seconds=60), 60.0
    assert agent_registry.since == at.now
    at.now, at.monotonic = NOW + timedelta(seconds=120), 120.0
    agent_registry.restart_grace_period()
    assert agent_registry.since == at.now
