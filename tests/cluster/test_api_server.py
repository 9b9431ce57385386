"""An API server that is frozen for a minute: training continues, and afterwards no worker counts as failed."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from operator import gt
from pathlib import Path

from dev.demo.commands import DemoError
from dev.localcluster import processes as daemons
from dev.localcluster.paths import from_environment
from tests.cluster.failing_training import fail, runs, training
from tests.cluster.kube import Kube, processes
from tests.cluster.operators import Operators

AWAY_SECONDS, LOOK_SECONDS = 60, 10
LATER_SECONDS = 25
"""Longer than a pod bears a node that is taken for dead."""


@contextmanager
def frozen() -> Iterator[None]:
    """Freeze the API server: it accepts connections and answers no request."""
    server = daemons.alive(from_environment(), "kube-apiserver")
    assert server is not None
    os.kill(server, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server, signal.SIGCONT)


def step(agent: int) -> int:
    """Return the last step of a worker's rank, read in its container: the API server is frozen."""
    while not (text := Path(f"/proc/{agent}/root/tmp/step").read_text()):
        time.sleep(0.01)  # the rank is writing it
    return int(text)


def answers(kube: Kube) -> bool:
    try:
        return kube.run("get", "--raw", "/readyz", "--request-timeout=5s") == "ok"
    except DemoError:
        return False


def test_training_continues_while_the_api_server_is_frozen(kube: Kube) -> None:
    operators = Operators(kube)
    kube.apply(training())
    runs(kube, 1)
    before = kube.uids("job")
    agents = [processes(pod, "/run/trainyard/agent")[0] for pod in kube.pods("job")]
    with frozen():
        done = [[*map(step, agents)]]
        for _ in range(AWAY_SECONDS // LOOK_SECONDS):
            time.sleep(LOOK_SECONDS)
            done.append([*map(step, agents)])
    for earlier, later in pairwise(done):
        assert all(map(gt, later, earlier)), done
    kube.until(lambda: answers(kube), 60, "the API server to answer")
    time.sleep(LATER_SECONDS)
    # Without a Lease an operator ends, and the kubelet takes ever longer to start it again while it cannot get one.
    kube.until(operators.both_ready, 120, "both operators to be ready")
    status = kube.status("job")
    assert (status["attempt"], status["phase"]) == (1, "Running")
    assert {status["restarts"][kind] for kind in ("failures", "disruptions", "resizes")} == {0}
    assert kube.uids("job") == before
    assert [node["metadata"]["name"] for node in kube.find_all("nodes") if node["spec"].get("taints")] == []
    fail(kube, "job-worker-1-1")
    status = runs(kube, 2)
    assert (kube.uids("job"), status["restarts"]["failures"]) == (before, 1)
    for pod in operators.home.find_all("pods", "app.kubernetes.io/name=trainyard"):
        path = f"/api/v1/namespaces/{operators.home.namespace}/pods/{pod['metadata']['name']}:8080/proxy/metrics"
        assert 'code="429"' not in operators.home.run("get", "--raw", path), "no client has sent too many requests"
