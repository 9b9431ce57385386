"""Recovery is exact: the weights equal those of a run without the fault, to the last bit."""

import json
import re
import secrets
from pathlib import Path

import pytest

from dev.demo import install
from dev.demo.commands import Cluster
from dev.demo.run import kill
from dev.demo.target import ROOT
from tests.cluster.kube import Json, Kube, job, main_container
from tests.cluster.training_log import weights

STEPS, HIT_AFTER = 60, 25


def digits(kube: Kube, name: str, checkpoints: Path) -> Json:
    """Return the digits example on three workers, with a host folder for its checkpoints."""
    checkpoints.mkdir()
    checkpoints.chmod(0o777)
    manifest = job(name, replicas=3, framework="torch")
    pod = manifest["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 30
    pod["volumes"] = [
        {"name": "program", "configMap": {"name": "digits"}},
        {"name": "checkpoints", "hostPath": {"path": str(checkpoints)}},
    ]
    alike = {"matchLabels": {"trainyard.dev/job-name": name}}
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    pod["topologySpreadConstraints"] = [{**spread, "labelSelector": alike}]
    main = main_container(manifest)
    main["command"] = ["python3", "/app/train.py", "--checkpoints", "/checkpoints", "--log-every", "1"]
    main["args"] = ["--steps", str(STEPS), "--checkpoint-every", "10"]
    main["volumeMounts"] = [
        {"name": "program", "mountPath": "/app"},
        {"name": "checkpoints", "mountPath": "/checkpoints"},
    ]
    return manifest


def losses(log: str) -> dict[int, str]:
    return {int(step): loss for step, loss in re.findall(rf"step (\d+)/{STEPS} loss (\S+)", log)}


@pytest.fixture(scope="module")
def calm(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the log of an undisturbed run."""
    folder, name = tmp_path_factory.mktemp("calm"), f"t-{secrets.token_hex(4)}"
    cluster.kube("create", "namespace", name)
    kube = Kube(cluster, name)
    begin(kube, "calm", folder)
    assert kube.wait_phase("calm", "Complete", 180)["attempt"] == 1, "the run was not disturbed"
    log = kube.run("logs", "calm-worker-0-1")
    cluster.kube("delete", "namespace", name, "--wait=false")
    return log


def begin(kube: Kube, name: str, folder: Path) -> None:
    folder.chmod(0o755)
    kube.without_pod_security()
    files = [f"--from-file={ROOT / 'examples/digits/base' / name}" for name in ("train.py", "digits.csv.gz")]
    kube.run("create", "configmap", "digits", *files)
    kube.apply(digits(kube, name, folder / name))


def begun(kube: Kube, name: str, folder: Path, *, after: int = HIT_AFTER) -> None:
    """Start a run, and wait until it has made some steps."""
    begin(kube, name, folder)
    kube.wait_phase(name, "Running", 60)
    kube.until(lambda: max(losses(kube.run("logs", f"{name}-worker-0-1")), default=0) >= after, 120, "some steps")


def test_recovery_reproduces_losses_and_weights_exactly(kube: Kube, calm: str, tmp_path: Path) -> None:
    begun(kube, "hit", tmp_path)
    kube.run("exec", "hit-worker-1-1", "--", *kill(r"train\.py"))
    status = kube.wait_phase("hit", "Complete", 180)
    assert status["restarts"]["failures"] == 1
    whole = kube.run("logs", "hit-worker-0-1")
    resumed = re.search(r"resumed from step (\d+)", whole)
    assert resumed
    hit = whole[resumed.start() :]
    assert int(resumed[1]) >= HIT_AFTER // 10 * 10
    again = losses(hit)
    assert min(again) == int(resumed[1]) + 1
    assert again == {step: loss for step, loss in losses(calm).items() if step in again}
    assert weights(hit) == weights(calm)


# A taint such as termination handlers put on a node that its cloud is about to take back.
NOTICE = "aws-node-termination-handler/spot-itn"
DRAIN = "drain {} --delete-emptydir-data --pod-selector=trainyard.dev/job-name=moved", "uncordon {}"
SPOT = f"taint node {{}} {NOTICE}=now:NoExecute", f"taint node {{}} {NOTICE}-"


@pytest.mark.parametrize(("leave", "back"), [DRAIN, SPOT], ids=["drain", "spot notice"])
def test_leaving_a_node_gracefully_loses_no_step(kube: Kube, calm: str, tmp_path: Path, leave: str, back: str) -> None:
    begun(kube, "moved", tmp_path)
    # A taint takes away an operator too: not the one that leads.
    home = kube.other(install.NAMESPACE)
    leads = home.get("pod", home.leader())["spec"]["nodeName"]
    nodes = [kube.get("pod", f"moved-worker-{index}-1")["spec"]["nodeName"] for index in (1, 2)]
    node = next(node for node in nodes if node != leads)
    try:
        kube.run(*leave.format(node).split())
        status = kube.wait_phase("moved", "Complete", 180)
    finally:
        kube.run(*back.format(node).split())
    restarts = status["restarts"]
    assert (restarts["failures"], restarts["disruptions"]) == (0, 1)
    (last,) = re.findall(r"all ranks stop after step (\d+)", kube.run("get", "events"))
    log = kube.run("logs", "moved-worker-0-1")
    assert f"resumed from step {last} (attempt 2)" in log
    steps = [int(step) for step in re.findall(rf"step (\d+)/{STEPS} loss", log)]
    assert steps == [*range(1, STEPS + 1)], "no step is lost or repeated"
    assert (losses(log), weights(log)) == (losses(calm), weights(calm))


def suspend(kube: Kube, name: str, *, on: bool) -> None:
    change = {"spec": {"lifecycle": {"suspend": on}}}
    kube.run("patch", "tj", name, "--type=merge", "-p", json.dumps(change))


@pytest.mark.parametrize("after", [5, HIT_AFTER], ids=["at once", "later"])
def test_suspended_training_resumes_at_the_next_step(kube: Kube, calm: str, tmp_path: Path, after: int) -> None:
    begun(kube, "paused", tmp_path, after=after)
    suspend(kube, "paused", on=True)
    kube.wait_phase("paused", "Suspended")
    kube.until(lambda: not kube.pods("paused"), 60, "its pods to be gone")
    (last,) = re.findall(r"all ranks stop after step (\d+)", kube.run("get", "events"))
    suspend(kube, "paused", on=False)
    restarts = kube.wait_phase("paused", "Complete", 180)["restarts"]
    assert (restarts["failures"], restarts["disruptions"]) == (0, 0)
    log = kube.run("logs", "paused-worker-0-2")
    assert f"resumed from step {last} (attempt 2)" in log
    rest = {step: loss for step, loss in losses(calm).items() if step > int(last)}
    assert (losses(log), weights(log)) == (rest, weights(calm))
