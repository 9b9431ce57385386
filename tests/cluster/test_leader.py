"""Two operators on real nodes: the leader is killed, deleted or frozen, and the standby takes over."""

import os
import signal
import time

import pytest

from tests.cluster.kube import Kube, job
from tests.cluster.operators import Operators
from trainyard.engine.leader import LeaseTiming


@pytest.fixture
def operators(kube: Kube) -> Operators:
    return Operators(kube)


def seconds_until_pods(kube: Kube, name: str, within: float) -> float:
    """Return the seconds until a new job has its pods."""
    began = time.monotonic()
    kube.apply(job(name, replicas=1))
    kube.until(lambda: kube.pods(name), within, f"an operator to act on {name}")
    return time.monotonic() - began


def test_the_leader_is_killed(kube: Kube, operators: Operators) -> None:
    """Its container restarts at once, and does not wait for the Lease of its own dead process."""
    operators.renew()
    kube.apply(job(replicas=3))
    kube.wait_phase("job", "Running")
    before = sorted(p["metadata"]["uid"] for p in kube.pods("job"))
    killed = operators.leader()
    os.kill(operators.process(killed), signal.SIGKILL)
    took = seconds_until_pods(kube, "next", 20)
    print(f"pods after kill -9: {took:.1f} s")  # noqa: T201 - a figure to look at
    assert operators.leader() == killed, "the same pod leads again"
    assert operators.container(killed)["exitCode"] == 137
    assert took < LeaseTiming().duration - LeaseTiming().retry_period, "it did not wait for the Lease"
    assert sorted(p["metadata"]["uid"] for p in kube.pods("job")) == before
    status = kube.status("job")
    assert (status["attempt"], status["phase"]) == (1, "Running")
    assert status["restarts"] == {"failures": 0, "disruptions": 0, "resizes": 0}


def test_the_leaders_pod_is_deleted(kube: Kube, operators: Operators) -> None:
    kube.apply(job(replicas=3))
    kube.wait_phase("job", "Running")
    before = operators.leader()
    operators.home.delete_pod(before)
    operators.home.until(lambda: operators.leader() not in {before, ""}, 5, "the other to lead")
    seconds_until_pods(kube, "next", 5)
    assert kube.status("job")["attempt"] == 1


def test_the_leader_is_frozen_while_a_worker_fails(kube: Kube, operators: Operators) -> None:
    kube.apply(job(replicas=3))
    kube.wait_phase("job", "Running")
    frozen = operators.leader()
    process, before = operators.process(frozen), operators.restarts(frozen)
    os.kill(process, signal.SIGSTOP)
    began = time.monotonic()
    try:
        kube.kill_main("job-worker-1-1")
        kube.until(lambda: kube.status("job")["attempt"] == 2, 25, "the other to count the failure")
        assert operators.leader() != frozen
        # Not longer: the kubelet kills a container that does not answer its probes for 30 s.
        time.sleep(max(0.0, 22 - (time.monotonic() - began)))
    finally:
        os.kill(process, signal.SIGCONT)
    operators.home.until(lambda: operators.restarts(frozen) > before, 15, "the frozen operator to exit")
    assert operators.container(frozen)["exitCode"] == 3, "it exits because it lost the lease"
    logged = operators.home.run("logs", frozen, "--previous").splitlines()
    assert "lost the lease" in logged[-1]
    kube.wait_phase("job", "Running")
    status = kube.status("job")
    assert (status["attempt"], status["restarts"]["failures"]) == (2, 1)


def test_a_rollout_hands_over_the_lease(kube: Kube, operators: Operators) -> None:
    kube.apply(job(replicas=3))
    kube.wait_phase("job", "Running")
    operators.renew()
    seconds_until_pods(kube, "next", 20)
    assert kube.status("job")["attempt"] == 1
