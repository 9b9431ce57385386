"""A recovery changes nothing of the mathematics: the same weights, to the last bit, as without the fault."""

import re
from pathlib import Path

from demo.run import KILL
from demo.target import ROOT
from tests.cluster.kube import Json, Kube, job, main_container

STEPS, KILL_AFTER = 60, 25


def digits(kube: Kube, name: str, checkpoints: Path) -> Json:
    """The example's program on three workers, with a folder of this machine for its checkpoints."""
    checkpoints.mkdir()
    checkpoints.chmod(0o777)
    manifest = job(name, replicas=3, framework="torch")
    pod = manifest["spec"]["template"]["spec"]
    pod["volumes"] = [
        {"name": "program", "configMap": {"name": "digits"}},
        {"name": "checkpoints", "hostPath": {"path": str(checkpoints)}},
    ]
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


def weights(log: str) -> str:
    (found,) = re.findall(r"^weights (\w{16})$", log, flags=re.MULTILINE)
    return str(found)


def test_after_a_recovery_the_losses_and_the_weights_are_those_of_the_undisturbed_run(
    kube: Kube, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    files = [f"--from-file={ROOT / 'examples/digits' / name}" for name in ("train.py", "digits.csv.gz")]
    kube.run("create", "configmap", "digits", *files)
    kube.apply(digits(kube, "calm", tmp_path / "calm"))
    kube.wait_phase("calm", "Complete", 180)
    kube.apply(digits(kube, "hit", tmp_path / "hit"))
    kube.wait_phase("hit", "Running", 60)
    kube.until(lambda: max(losses(kube.run("logs", "hit-worker-0-1")), default=0) >= KILL_AFTER, 120, "some steps")
    kube.run("exec", "hit-worker-1-1", "--", "python3", "-c", KILL)
    status = kube.wait_phase("hit", "Complete", 180)
    assert status["restarts"]["failures"] == 1
    calm, whole = kube.run("logs", "calm-worker-0-1"), kube.run("logs", "hit-worker-0-1")
    resumed = re.search(r"resumed from step (\d+)", whole)
    assert resumed
    hit = whole[resumed.start() :]
    assert int(resumed[1]) >= KILL_AFTER // 10 * 10
    again = losses(hit)
    assert min(again) == int(resumed[1]) + 1
    assert again == {step: loss for step, loss in losses(calm).items() if step in again}
    assert weights(hit) == weights(calm)
