"""Two operators on a real API server: one dies, is stopped or leaves; the other goes on, and never do both write."""

import signal
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import Plane
from tests.api.process import Operator, operator
from tests.support.polling import until

pytestmark = pytest.mark.usefixtures("granted")


@pytest.fixture
def job(lab: Namespace, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"job-{abs(hash(request.node.name)) % 10**6}"
    yield name
    lab.remove(name)


def sorted_out(first: Operator, second: Operator) -> tuple[Operator, Operator]:
    """Who leads and who stands by."""
    until(lambda: first.leads or second.leads, 30, "a leader")
    return (first, second) if first.leads else (second, first)


def test_standby_takes_over_within_twenty_seconds(plane: Plane, lab: Namespace, job: str) -> None:
    with operator(plane, "one") as one, operator(plane, "two") as two:
        leader, standby = sorted_out(one, two)
        lab.submit(job)
        lab.until_phase("Running", job)
        before = {name: pod["metadata"]["uid"] for name, pod in lab.pods(job).items()}
        leader.signal(signal.SIGKILL)
        began = time.monotonic()
        lab.submit(f"{job}-next")
        until(lambda: len(lab.pods(f"{job}-next")) == 2, 20, "the standby to make pods")
        print(f"takeover after kill -9: {time.monotonic() - began:.1f} s")  # noqa: T201 - a figure to look at
        assert standby.leads
        assert {name: pod["metadata"]["uid"] for name, pod in lab.pods(job).items()} == before
        assert lab.status(job)["attempt"] == 1
        lab.remove(f"{job}-next")


def test_restarted_container_leads_before_the_lease_expires(plane: Plane, lab: Namespace, job: str) -> None:
    pods = {name: str(uuid4()) for name in ("one", "two")}
    with operator(plane, "one", pod_uid=pods["one"]) as one, operator(plane, "two", pod_uid=pods["two"]) as two:
        leader, standby = sorted_out(one, two)
        lab.submit(job)
        lab.until_phase("Running", job)
        leader.signal(signal.SIGKILL)
        leader.ends(10)
        began = time.monotonic()
        with operator(plane, leader.name, pod_uid=pods[leader.name]) as again:
            lab.ends(f"{job}-worker-1-1", 3)
            until(lambda: lab.status(job)["attempt"] == 2, 10, "the same pod to act")
            print(f"going on after kill -9: {time.monotonic() - began:.1f} s")  # noqa: T201 - a figure to look at
            assert (again.leads, standby.leads) == (True, False)
            assert lab.status(job)["restarts"] == {"failures": 1, "disruptions": 0, "resizes": 0}
            assert not again.bugs()


def test_two_processes_of_one_pod_never_both_lead(plane: Plane, lab: Namespace, job: str) -> None:
    """Somebody starts another in the container."""
    pod = str(uuid4())
    with operator(plane, "one", pod_uid=pod) as one:
        until(lambda: one.leads, 30, "it to lead")
        with operator(plane, "second", pod_uid=pod) as second:
            lab.submit(job)
            lab.until_phase("Running", job)
            assert (one.leads, second.leads) == (True, False)
            assert any(
                "cannot acquire the pod lock; waiting for lease expiry" in message for message in second.messages()
            )


def test_a_clean_stop_hands_over_within_three_seconds(plane: Plane, lab: Namespace, job: str) -> None:
    with operator(plane, "one") as one, operator(plane, "two") as two:
        leader, standby = sorted_out(one, two)
        lab.submit(job)
        lab.until_phase("Running", job)
        began = time.monotonic()
        leader.signal(signal.SIGTERM)
        until(lambda: standby.leads, 3, "the standby to lead")
        print(f"handover after SIGTERM: {time.monotonic() - began:.1f} s")  # noqa: T201 - a figure to look at
        assert leader.ends(10) == 0
        lab.ends(f"{job}-worker-1-1", 3)
        until(lambda: lab.status(job)["attempt"] == 2, 10, "the new leader to act")
        assert lab.status(job)["restarts"] == {"failures": 1, "disruptions": 0, "resizes": 0}
        assert not leader.bugs()


def test_frozen_leader_writes_nothing_after_it_resumes(plane: Plane, lab: Namespace, job: str) -> None:
    with operator(plane, "one") as one, operator(plane, "two") as two:
        leader, standby = sorted_out(one, two)
        lab.submit(job, replicas=8)
        lab.until_phase("Running", job)
        leader.signal(signal.SIGSTOP)
        time.sleep(0.5)
        frozen = time.time()
        lab.ends(f"{job}-worker-1-1", 3)
        until(lambda: standby.leads, 20, "the standby to lead")
        until(lambda: lab.status(job).get("attempt") == 2, 10, "attempt 2")
        lab.until_phase("Running", job)
        time.sleep(max(0.0, frozen + 30 - time.time()))
        leader.signal(signal.SIGCONT)
        assert leader.ends(10) == 3
        others = {request.credential for request in plane.requests(frozen) if request.writes}
        assert len(others) == 1, "only one has written since"
        assert "lost the lease trainyard-system/trainyard" in leader.messages()[-1]
        status = lab.status(job)
        assert (status["attempt"], status["restarts"]["failures"]) == (2, 1)
        assert not leader.bugs()


def test_partitioned_leader_exits_and_successor_takes_over(plane: Plane, lab: Namespace, job: str) -> None:
    with operator(plane, "one", lease_duration_seconds="6") as one:
        until(lambda: one.leads, 10, "it to lead")
        lab.submit(job)
        lab.until_phase("Running", job)
        lab.stop()
        with plane.hung():
            assert one.ends(15) == 3
    with operator(plane, "one", lease_duration_seconds="6") as one:
        until(lambda: one.leads, 20, "it to lead again")
        until(lambda: any("managing TrainingJobs" in message for message in one.messages()), 10, "all to be listed")
        assert (lab.status(job)["attempt"], lab.status(job)["phase"]) == (1, "Running")
