"""The operator is killed at the worst moment. Nothing is counted or created twice, and nothing is lost."""

import os
import signal
import time
from pathlib import Path

from tests.cluster.kube import Kube, job, main_container
from tests.support.polling import until


def kill_operator() -> None:
    """Kill all operators with SIGKILL. Where none runs, since the node has not restarted it yet, wait for one."""
    until(_kill_all, 120, "an operator process")


def _kill_all() -> bool:
    killed = False
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"trainyard-operator" in process.read_bytes():
                os.kill(int(process.parent.name), signal.SIGKILL)
                killed = True
        except (ProcessLookupError, FileNotFoundError):
            continue
    return killed


def test_killed_while_it_creates_pods(kube: Kube) -> None:
    manifest = job(replicas=24, script="exit 0")
    kube.apply(manifest)
    kube.until(lambda: len(kube.pods("job")) >= 3, 30, "the first pods")
    kill_operator()
    status = kube.wait_phase("job", "Complete", 120)
    assert (status["attempt"], status["ready"]) == (1, "24/24")
    assert status["restarts"] == {"failures": 0, "disruptions": 0, "resizes": 0}
    names = sorted(p["metadata"]["name"] for p in kube.pods("job"))
    assert names == sorted(f"job-worker-{i}-1" for i in range(24))


def test_killed_twice_while_a_failure_is_handled(kube: Kube) -> None:
    kube.apply(job(replicas=3, recovery={"maxRestarts": 1}))
    kube.wait_phase("job", "Running")
    kube.kill_main("job-worker-1-1")
    kill_operator()
    kube.until(lambda: kube.status("job")["attempt"] == 2, 90, "attempt 2")
    kill_operator()
    kube.until(lambda: kube.phase("job") == "Running", 90, "attempt 2 to run")
    status = kube.status("job")
    assert (status["attempt"], status["restarts"]["failures"]) == (2, 1)


def test_operator_restart_leaves_a_finished_job_finished(kube: Kube) -> None:
    kube.apply(job(script="exit 0", lifecycle={"cleanPods": "All"}))
    kube.wait_phase("job", "Complete")
    kube.until(lambda: not kube.pods("job"), 30, "the pods to go")
    kill_operator()
    other = job("other", script="exit 0")
    main_container(other)["resources"] = {}
    kube.apply(other)
    kube.wait_phase("other", "Complete", 90)
    time.sleep(1)
    assert kube.pods("job") == []
    assert kube.phase("job") == "Complete"
