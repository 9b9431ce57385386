"""When the ranks of a worker count as doing nothing."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support.polling import until
from trainyard_agent import processes
from trainyard_agent.idle_watch import IdleWatch, read_network_bytes

WAITS = "import threading; print(1, flush=True); threading.Event().wait()"


@dataclass
class Surroundings:
    """A rank that waits for a lock, a clock and a network that the test moves."""

    pid: int
    now: float = 0.0
    bytes: int = 0
    watch: IdleWatch = field(init=False)

    def watched(self, limit: float | None) -> "Surroundings":
        self.watch = IdleWatch(limit, lambda: self.now, lambda: self.bytes)
        self.watch.update([self.pid])
        return self

    def after(self, seconds: int, bytes_per_second: float = 0) -> bool:
        """Look each second, and return whether the ranks are idle then."""
        for _ in range(seconds):
            self.now += 1
            self.bytes += int(bytes_per_second)
            self.watch.update([self.pid])
        return self.watch.is_idle


@pytest.fixture
def rank() -> Iterator[Surroundings]:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        until(lambda: (found := processes.stat(process.pid)) is not None and found.state == "S", 60, "the rank to wait")
        yield Surroundings(process.pid)
        process.kill()


@pytest.mark.parametrize(("limit", "before", "then"), [(60, 59, 15), (None, 599, 15)])
def test_ranks_are_idle_after_the_limit(rank: Surroundings, limit: float | None, before: int, then: int) -> None:
    rank.watched(limit)
    assert not rank.after(before)
    assert rank.after(then)


def test_traffic_of_the_network_is_activity(rank: Surroundings) -> None:
    rank.watched(60)
    assert not rank.after(200, bytes_per_second=50_000)
    assert rank.after(80, bytes_per_second=500), "probes and the agent's own requests are none"


def test_ranks_without_limit_are_never_idle(rank: Surroundings) -> None:
    assert not rank.watched(0).after(10_000)


def test_watch_restarts_with_other_ranks(rank: Surroundings) -> None:
    rank.watched(60).after(100)
    assert rank.watch.update([]), "a change is reported once"
    assert not rank.watch.is_idle


def test_network_of_this_machine_is_read() -> None:
    assert read_network_bytes() >= 0
