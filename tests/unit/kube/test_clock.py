"""The API server's clock, from the `Date` of its answers."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from prometheus_client import CollectorRegistry

from tests.support.fake_api import FakeApi
from trainyard.controller.metrics.collector import register_clock_offset
from trainyard.kube.clock import ServerClock
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import PODS

START = datetime(2026, 11, 23, 12, 0, 0, tzinfo=UTC)


@dataclass
class Machines:
    """The API server's, and ours, whose clock is `ahead` of it by so many seconds."""

    ahead: float = 0.0
    passed: float = 0.0

    def __post_init__(self) -> None:
        self.clock = ServerClock(
            wall=lambda: START.timestamp() + self.passed + self.ahead, steady=lambda: 50.0 + self.passed
        )

    def answers(self, *, after: float = 0.02, wrong: float = 0.0) -> None:
        """The server answers after so many seconds, its clock for once wrong by some; half of the time is the way
        there.
        """
        asked = 50.0 + self.passed
        self.passed += after / 2
        date = format_datetime(START + timedelta(seconds=int(self.passed + wrong)), usegmt=True)
        self.passed += after / 2
        self.clock.observe(date, asked)

    @property
    def error(self) -> float:
        """Seconds by which we are wrong about the server's time."""
        return (self.clock.now() - START).total_seconds() - self.passed


@pytest.mark.parametrize("ahead", [-86_400.0, -600.0, -3.0, 3.0, 100.0, 600.0])
def test_wrong_machine_clock_does_not_matter(ahead: float) -> None:
    machines = Machines(ahead)
    assert machines.error == pytest.approx(ahead), "nothing has been heard yet"
    machines.answers()
    assert abs(machines.error) < 1
    assert machines.clock.offset == pytest.approx(-ahead, abs=1)


@pytest.mark.parametrize("ahead", [-1.4, -1.0, 0.0, 1.4])
def test_two_seconds_are_noise(ahead: float) -> None:
    machines = Machines(ahead, passed=0.3)
    for _ in range(10):
        machines.answers(after=0.13)
    assert machines.clock.offset == pytest.approx(0, abs=1e-3)


def test_offset_near_threshold_does_not_flicker() -> None:
    machines, offsets = Machines(2.0), set()
    for _ in range(50):
        machines.answers(after=0.07)
        offsets.add(round(machines.clock.offset, 2))
    assert len(offsets) <= 2, "it is taken up once at most"


def test_clock_step_of_the_machine_changes_nothing() -> None:
    machines = Machines()
    machines.answers()
    machines.ahead = 600.0
    assert abs(machines.error) < 1, "before the next answer too"
    machines.answers()
    assert abs(machines.error) < 1


def test_clock_step_of_the_server_is_followed() -> None:
    machines = Machines()
    machines.answers(wrong=300.0)
    assert machines.error == pytest.approx(300, abs=1)
    machines.answers()
    assert abs(machines.error) < 1


def test_slow_answer_is_less_precise() -> None:
    machines = Machines(8.0)
    machines.answers(after=20.0)
    assert machines.error == pytest.approx(8), "it may have been written at the end of these seconds"
    machines.answers()
    assert abs(machines.error) < 1
    machines = Machines(600.0)
    machines.answers(after=20.0)
    assert abs(machines.error) < 11, "better than nothing"


@pytest.mark.parametrize(
    "date",
    [
        None,
        "",
        "now",
        "Mon, 23 Nov 2026",
        "Mon, 99 Nov 2026 12:00:00 GMT",
        "Mon, 23 Nov 2026 12:00:00 +99999999999999999999",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "Fri, 31 Dec 9999 23:59:59 GMT",
    ],
)
def test_missing_or_absurd_date_changes_nothing(date: str | None) -> None:
    machines = Machines(600.0)
    machines.answers()
    machines.clock.observe(date, 50.0)
    assert abs(machines.error) < 1


@pytest.mark.parametrize("date", ["Mon Nov 23 12:10:00 2026", "Monday, 23-Nov-26 12:10:00 GMT"])
def test_obsolete_date_formats_are_read(date: str) -> None:
    machines = Machines()
    machines.clock.observe(date, 50.0)
    assert machines.clock.offset == pytest.approx(600, abs=1)


def test_offset_is_logged_once_with_the_fix(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainyard")
    machines = Machines(600.0)
    for _ in range(100):
        machines.answers(after=1.0)
    assert len(caplog.messages) == 1
    assert "this machine's clock is 600 s ahead of the API server's" in caplog.text
    assert "NTP" in caplog.text
    machines.ahead = -60.0
    machines.answers()
    assert "60 s behind" in caplog.messages[1]
    machines.ahead, machines.passed = 0.0, machines.passed + 60
    machines.answers()
    assert caplog.messages[2:] == ["this machine's clock agrees with the API server's clock again"]


def test_different_server_clocks_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    machines = Machines()
    for _ in range(60):
        machines.answers(after=0.5, wrong=30.0)
        machines.answers(after=0.5)
    assert len(caplog.messages) <= 2


def test_offset_of_the_clocks() -> None:
    machines, registry = Machines(-600.0), CollectorRegistry()
    register_clock_offset(machines.clock, registry)
    machines.answers()
    assert registry.get_sample_value("trainyard_clock_offset_seconds") == pytest.approx(600, abs=1)


async def test_answers_and_watches_correct_the_clock(api: FakeApi) -> None:
    """The fake API server's clock is this machine's; the operator's is ten minutes ahead."""
    for watch in (False, True):
        session = api.session(clock=ServerClock(wall=lambda: datetime.now(UTC).timestamp() + 600))
        if watch:
            events = session.stream(PODS.path(), {"watch": "true"}, idle_timeout=5)
            api.cluster.create(PODS, "ns", {"metadata": {"name": "x"}})
            await anext(events)
            await events.aclose()
        else:
            await session.request("GET", PODS.path())
        assert session.clock.offset == pytest.approx(-600, abs=1.5)


async def test_error_answer_does_not_correct_the_clock(api: FakeApi) -> None:
    """It may be a proxy's."""
    session = api.session(clock=ServerClock(wall=lambda: datetime.now(UTC).timestamp() + 600))
    api.fault(method="GET", status=502)
    with pytest.raises(ApiError):
        await session.request("GET", PODS.path())
    assert session.clock.offset == pytest.approx(0, abs=0.1)
