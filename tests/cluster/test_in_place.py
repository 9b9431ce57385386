"""Recovery by the smallest restart scope: which pods stay, which are new, and that all ranks form a group again."""

import os
import signal
from collections.abc import Callable

import pytest

from dev.demo import install
from tests.cluster.failing_training import TRAIN, fail, runs, training
from tests.cluster.kube import Json, Kube, job, main_container, processes


def kill(kube: Kube, pod: str) -> None:
    """Kill the rank in a pod with SIGKILL."""
    kube.run("exec", pod, "-c", "main", "--", "sh", "-c", "kill -9 $(cat /tmp/pid)")


RAISED = "exited with code 1: RuntimeError: boom\nTraceback"
KILLED = "was killed by SIGKILL"


@pytest.mark.parametrize(
    ("hit", "rank", "message"),
    [(fail, 2, RAISED), (kill, 2, KILLED), (kill, 0, KILLED)],
    ids=["rank raises", "rank is killed", "rank 0 is killed"],
)
def test_a_rank_that_fails_costs_no_pod(kube: Kube, hit: Callable[[Kube, str], None], rank: int, message: str) -> None:
    kube.apply(training())
    runs(kube, 1)
    before = kube.uids("job")
    # Time lost before the first reported step belongs to the start.
    kube.until(lambda: kube.status("job").get("progress", {}).get("step"), 60, "the steps of attempt 1")
    hit(kube, f"job-worker-{rank}-1")
    status = runs(kube, 2)
    assert kube.uids("job") == before
    assert {s["restartCount"] for pod in kube.pods("job") for s in pod["status"]["containerStatuses"]} == {0}
    assert (status["restarts"]["failures"], status["internal"]["backoff"]["scope"]) == (1, "Process")
    assert status["lastFailure"]["message"].startswith(f"rank {rank} {message}")
    assert "restarting processes in place as attempt 2" in kube.run("get", "events")
    assert "RendezvousClosedError" not in kube.run("logs", "-l", "trainyard.dev/job-name=job", "--tail=-1")

    def counted() -> bool:
        return bool(kube.status("job").get("goodput", {}).get("attempt") == 2)

    kube.until(counted, 60, "the steps of attempt 2 in the goodput")
    lost = kube.status("job")["goodput"]["lostSeconds"]
    assert 0 < lost["recovery"] < 60
    assert lost["repeated"] > 0, "this program has no checkpoint"


def test_only_the_deleted_pod_is_replaced(kube: Kube) -> None:
    kube.apply(training(maxRestarts=0))
    runs(kube, 1)
    before = kube.uids("job")
    kube.delete_pod("job-worker-0-1")
    status = runs(kube, 2)
    assert (status["restarts"]["disruptions"], status["internal"]["backoff"]["scope"]) == (1, "Pod")
    after = kube.uids("job")
    assert after.keys() == {"job-worker-0-2", "job-worker-1-1", "job-worker-2-1"}
    assert {name: uid for name, uid in after.items() if name in before} == {
        name: uid for name, uid in before.items() if name != "job-worker-0-1"
    }


def test_the_agent_is_killed(kube: Kube) -> None:
    kube.apply(training())
    runs(kube, 1)
    # The first is the agent itself; those after it are its ranks and what prepares their next start.
    agent, *_ = processes(kube.get("pod", "job-worker-1-1"), "/run/trainyard/agent")
    os.kill(agent, signal.SIGKILL)
    status = runs(kube, 2)
    assert status["internal"]["backoff"]["scope"] == "Pod"
    assert kube.uids("job").keys() == {"job-worker-0-1", "job-worker-1-2", "job-worker-2-1"}


@pytest.mark.parametrize("beside", [False, True], ids=["one container", "with a sidecar"])
def test_container_restarts_in_its_pod(kube: Kube, *, beside: bool) -> None:
    manifest = training(minRestartScope="Container")
    marks = f"echo again >> /tmp/mark; exec python3 /dev/stdin <<'END'\n{TRAIN}END"
    main_container(manifest)["command"] = ["sh", "-c", marks]
    if beside:
        other = {**main_container(job()), "name": "beside", "command": ["sh", "-c", "exec sleep 600"]}
        manifest["spec"]["template"]["spec"]["containers"].append(other)
    kube.apply(manifest)
    runs(kube, 1)
    before = kube.uids("job")
    fail(kube, "job-worker-1-1")
    status = runs(kube, 2)
    assert kube.uids("job") == before
    counts = {pod["metadata"]["name"]: restarts(pod) for pod in kube.pods("job")}
    never, once = (0,) * (1 + beside), (1,) * (1 + beside)
    assert counts == {"job-worker-0-1": never, "job-worker-1-1": once, "job-worker-2-1": never}
    assert (status["restarts"]["failures"], status["restarts"]["disruptions"]) == (1, 0)
    assert (status["internal"]["backoff"]["scope"], status["internal"]["group"]["restartingContainer"]) == (
        "Container",
        1,
    )
    # The file system of the container is new, that of the others is not.
    lines = {pod: kube.run("exec", pod, "-c", "main", "--", "cat", "/tmp/mark").split() for pod in before}  # noqa: S108 - in the pod
    assert {pod: len(each) for pod, each in lines.items()} == {**dict.fromkeys(before, 2), "job-worker-1-1": 1}
    assert "restarting the container of worker 1 and the other workers' processes in place" in kube.run("get", "events")


def restarts(pod: Json) -> tuple[int, ...]:
    return tuple(each["restartCount"] for each in pod["status"]["containerStatuses"])


def test_failures_without_progress_escalate_the_restart_scope(kube: Kube) -> None:
    """The kubelet delays the second container restart of a pod."""
    kube.apply(training(env={"FAIL_UNTIL": "4"}, minRestartScope="Container"))
    status = runs(kube, 4, 180)
    assert (status["restarts"]["failures"], status["internal"]["backoff"]["scope"]) == (3, "Pod")
    assert kube.uids("job").keys() == {"job-worker-0-1", "job-worker-1-4", "job-worker-2-1"}
    assert kube.run("get", "events").count("restarting the container of worker 1") == 2


def test_another_size_leaves_pods_where_they_are(kube: Kube) -> None:
    kube.apply(training())
    runs(kube, 1)
    before = kube.uids("job")
    kube.run("scale", "tj/job", "--replicas=2")
    runs(kube, 2)
    first = {name: uid for name, uid in before.items() if name != "job-worker-2-1"}
    assert kube.uids("job") == first
    kube.run("scale", "tj/job", "--replicas=4")
    status = runs(kube, 3)
    after = kube.uids("job")
    assert after.keys() == {"job-worker-0-1", "job-worker-1-1", "job-worker-2-2", "job-worker-3-2"}
    assert first.items() <= after.items()
    restarts = status["restarts"]
    assert (restarts["failures"], restarts["disruptions"], restarts["resizes"]) == (0, 0, 2)
    output = kube.run("logs", "job-worker-0-1")
    assert [f"one of {size}" in output for size in (3, 2, 4)] == [True] * 3
    assert "restarting with 2 existing pods and 2 joining workers as attempt 3" in kube.run("get", "events")


@pytest.mark.parametrize("replicas", [1, 2])
def test_restarted_operator_finds_failure_from_its_absence(kube: Kube, replicas: int) -> None:
    kube.apply(training(replicas))
    runs(kube, 1)
    before, home = kube.uids("job"), kube.other(install.NAMESPACE)
    home.run("scale", f"deployment/{install.RELEASE}", "--replicas=0")
    home.until(lambda: not home.find_all("pods", "app.kubernetes.io/name=trainyard"), 60, "the operators to be gone")
    try:
        fail(kube, f"job-worker-{replicas - 1}-1")
        kube.until(lambda: "boom" in kube.run("logs", f"job-worker-{replicas - 1}-1"), 30, "the rank to fail")
    finally:
        home.run("scale", f"deployment/{install.RELEASE}", "--replicas=2")
    status = runs(kube, 2)
    assert (kube.uids("job"), status["restarts"]["failures"]) == (before, 1)
    home.run("rollout", "status", f"deployment/{install.RELEASE}", "--timeout=120s")
