"""A network partition between workers that the operator reaches: no process fails, and no rank advances."""

import subprocess
import time

from dev.demo.target import python
from tests.cluster.failing_training import runs, training
from tests.cluster.kube import Kube
from tests.cluster.partition import partition


def step(kube: Kube) -> int:
    reported: int = (kube.status("job").get("progress") or {}).get("step", 0)
    return reported


def rules(node: str) -> str:
    """Return the rules by which the node drops packets."""
    words = [*python("dev.localcluster"), "node", "exec", node.removeprefix("node"), "--", "ip", "rule", "show"]
    return "\n".join(line for line in subprocess.check_output(words, text=True).splitlines() if "blackhole" in line)


def test_partitioned_workers_hang_and_continue_when_healed(kube: Kube) -> None:
    manifest = training(replicas=2, hangTimeoutSeconds=5)
    apart = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    selector = {"labelSelector": {"matchLabels": {"trainyard.dev/job-name": "job"}}}
    manifest["spec"]["template"]["spec"]["topologySpreadConstraints"] = [apart | selector]
    kube.apply(manifest)
    runs(kube, 1)
    kube.until(lambda: step(kube) > 0, 60, "a step")
    before, pods = kube.uids("job"), kube.pods("job")
    nodes = [pod["spec"]["nodeName"] for pod in pods]
    assert len(set(nodes)) == 2
    with partition(*pods):
        assert all(rules(node) for node in nodes)
        kube.until(lambda: kube.status("job")["attempt"] == 2, 60, "the hang to be noticed")
        assert kube.status("job")["lastFailure"]["exitCode"] == 91
        stood = step(kube)
        time.sleep(8)
        assert step(kube) == stood, "a restarted worker does not reach the other either"
        assert kube.status("job")["attempt"] == 2, "the restarted group gets the hang timeout"
    assert not any(rules(node) for node in nodes)
    status = runs(kube, 2)
    kube.until(lambda: step(kube) > stood, 120, "a step after the partition")
    assert kube.uids("job") == before, "in place"
    assert (status["restarts"]["failures"], status["internal"]["backoff"]["scope"]) == (1, "Process")
