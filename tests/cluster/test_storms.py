"""Faults that last or repeat: an operator outage of ten minutes, and a job that is preempted five times."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dev.demo import install
from tests.cluster.elastic_group import LONG, a_node_each
from tests.cluster.failing_training import fail, runs, training as plain
from tests.cluster.kube import Json, Kube, job
from tests.cluster.recorded_training import BATCH, PROGRAM, STEPS, steps, training

AWAY_SECONDS, PREEMPTIONS = 630, 5
pytestmark = LONG


def test_failure_during_long_operator_outage_counts_once(kube: Kube) -> None:
    """After ten minutes the agent exits, and the pod reports the failure. The first of two failures is the cause."""
    kube.apply(plain(2))
    runs(kube, 1)
    home = kube.other(install.NAMESPACE)
    home.run("scale", f"deployment/{install.RELEASE}", "--replicas=0")
    home.until(lambda: not home.find_all("pods", "app.kubernetes.io/name=trainyard"), 60, "the operators to be gone")
    try:
        fail(kube, "job-worker-1-1")
        time.sleep(AWAY_SECONDS)
        assert kube.status("job")["attempt"] == 1
    finally:
        home.run("scale", f"deployment/{install.RELEASE}", "--replicas=2")
    status = runs(kube, 2)
    home.run("rollout", "status", f"deployment/{install.RELEASE}", "--timeout=120s")
    time.sleep(15)
    restarts = kube.status("job")["restarts"]
    assert (kube.status("job")["attempt"], restarts["failures"], restarts["disruptions"]) == (2, 1, 0)
    assert status["lastFailure"]["rank"] == 1
    assert "RuntimeError: boom" in status["lastFailure"]["message"]


@contextmanager
def all_nodes_taken(kube: Kube) -> Iterator[None]:
    """Run three pods of a higher priority that take all GPUs."""
    urgent = f"urgent-{secrets.token_hex(4)}"
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": urgent}}
    kube.apply({**priority, "value": 1000})
    pods = [taker(f"{urgent}-{number}", urgent) for number in range(3)]
    kube.apply(*pods)
    try:
        kube.until(lambda: len(kube.find_all("pods", f"taker={urgent}")) == 3, 10, "the takers")
        kube.until(
            lambda: all(p["status"]["phase"] == "Running" for p in kube.find_all("pods", f"taker={urgent}")),
            90,
            "the takers to run",
        )
        yield
    finally:
        kube.run("delete", "pods", "-l", f"taker={urgent}", "--force", "--grace-period=0")
        kube.run("delete", "priorityclass", urgent)


def taker(name: str, priority: str) -> Json:
    spec = a_node_each(job(script="sleep 600 & wait"))["spec"]["template"]["spec"]
    labels = {"taker": priority}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {**spec, "priorityClassName": priority, "terminationGracePeriodSeconds": 0},
    }


def test_five_preemptions_lose_no_step(kube: Kube, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    kube.without_pod_security()
    kube.run("create", "configmap", "elastic", f"--from-file={PROGRAM}")
    manifest = a_node_each(training("job", tmp_path, 0.1))
    manifest["spec"] |= {"replicas": 3, "recovery": {"maxRestarts": 0}}
    del manifest["spec"]["elastic"]
    kube.apply(manifest)

    def furthest() -> int:
        return max(steps(tmp_path / "job"), default=0)

    def reached(step: int) -> bool:
        return furthest() >= step

    for preempted in range(PREEMPTIONS):
        kube.until(partial(reached, furthest() + 10), 120, "ten steps more")
        with all_nodes_taken(kube):
            assert kube.status("job")["attempt"] >= preempted + 2
    status = kube.wait_phase("job", "Complete", 300)
    assert status["restarts"]["failures"] == 0
    # All three workers are taken each time, not all in the same moment.
    assert PREEMPTIONS <= status["restarts"]["disruptions"] <= 3 * PREEMPTIONS
    found = steps(tmp_path / "job")
    assert [*found] == [*range(1, STEPS + 1)]
    assert all(len(step.samples) == BATCH for step in found.values()), "none is made twice"
