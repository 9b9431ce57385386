from datetime import timedelta
from types import SimpleNamespace

from tests.support.jobs import NOW
from trainyard.api.agent_protocol import AgentState
from trainyard.coordinator.agent_registry import Attendance
from trainyard.domain.state.snapshot import AgentView

SAID = AgentView(1, AgentState.RUNNING)


def test_where_the_clock_is_set_all_that_is_known_goes_with_it() -> None:
    """Else an agent that hangs up for the moment of a new call would be away for an hour, or for less than no time."""
    at = SimpleNamespace(now=NOW, monotonic=50.0)
    attendance = Attendance(lambda: at.now, lambda _job, _seconds: None, lambda: at.monotonic)
    assert attendance.since == NOW
    with attendance.call("job", "pod", SAID) as call:
        at.now, at.monotonic = at.now + timedelta(seconds=300), 350.0
        at.now -= timedelta(hours=1)
        attendance.left("job", "pod", call, None)
    at.now, at.monotonic = at.now + timedelta(seconds=5), 355.0
    agent = attendance.of("job", ["pod"])["pod"]
    assert agent.left_at is not None
    assert agent.since is not None
    assert (at.now - agent.left_at, at.now - agent.since) == (timedelta(seconds=5), timedelta(seconds=305))
    assert at.now - attendance.since == timedelta(seconds=305)


def test_a_clock_that_is_a_little_off_is_left_alone() -> None:
    at = SimpleNamespace(now=NOW, monotonic=0.0)
    attendance = Attendance(lambda: at.now, lambda _job, _seconds: None, lambda: at.monotonic)
    began = attendance.since
    at.monotonic = 0.9
    assert attendance.since == began


def test_who_stands_by_does_not_begin_to_listen_because_many_call() -> None:
    at = SimpleNamespace(now=NOW, monotonic=0.0)
    attendance = Attendance(lambda: at.now, lambda _job, _seconds: None, lambda: at.monotonic)
    attendance.miss_nobody()
    at.now, at.monotonic = NOW + timedelta(seconds=60), 60.0
    assert attendance.since == at.now
    at.now, at.monotonic = NOW + timedelta(seconds=120), 120.0
    attendance.miss_nobody()
    assert attendance.since == at.now
