"""The training library in pods: checkpoints in memory survive a process, those on the volume survive a pod."""

import re
from pathlib import Path

from dev.demo.run import kill
from tests.cluster.kube import Json, Kube, job, main_container
from tests.cluster.training_log import weights

PROGRAM = Path(__file__).with_name("library_program.py")


def training(kube: Kube, name: str, folder: Path) -> Json:
    """Return a job of three workers with one process each, and a host folder for checkpoints."""
    checkpoints = folder / name
    checkpoints.mkdir()
    checkpoints.chmod(0o777)
    manifest = job(name, replicas=3, framework="torch")
    pod, main = manifest["spec"]["template"]["spec"], main_container(manifest)
    pod["terminationGracePeriodSeconds"] = 30
    pod["volumes"] = [
        {"name": "program", "configMap": {"name": "library"}},
        {"name": "checkpoints", "hostPath": {"path": str(checkpoints)}},
    ]
    main["command"] = ["python3", "/app/library_program.py", "/checkpoints"]
    main["volumeMounts"] = [
        {"name": "program", "mountPath": "/app"},
        {"name": "checkpoints", "mountPath": "/checkpoints"},
    ]
    return manifest


def steps(log: str) -> dict[int, str]:
    """Return the samples of rank 0 in each step."""
    return {int(step): samples for step, samples in re.findall(r"^step (\d+) samples (.*)$", log, flags=re.MULTILINE)}


def test_killed_process_and_lost_pod_leave_weights_unchanged(kube: Kube, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    kube.without_pod_security()
    kube.run("create", "configmap", "library", f"--from-file={PROGRAM}")
    for name in ("calm", "hit"):
        kube.apply(training(kube, name, tmp_path))

    def reached(step: int) -> bool:
        return max(steps(kube.run("logs", "hit-worker-0-1")), default=0) >= step

    kube.wait_phase("hit", "Running", 60)
    kube.until(lambda: "prepared warm start" in kube.run("logs", "hit-worker-0-1"), 60, "a warm start to be prepared")
    kube.until(lambda: reached(25), 120, "some steps")
    kube.run("exec", "hit-worker-1-1", "--", *kill(re.escape(PROGRAM.name)))
    kube.until(lambda: reached(60), 120, "more steps")
    kube.run("delete", "pod", "hit-worker-2-1", "--wait=false")
    status = kube.wait_phase("hit", "Complete", 180)
    restarts = status["restarts"]
    assert (restarts["failures"], restarts["disruptions"]) == (1, 1)
    log = kube.run("logs", "hit-worker-0-1")
    assert "disabled warm start" not in log
    (first, second) = re.findall(r"resuming from step (\d+): checkpoint \S+ in (\S+)", log)
    assert (int(first[0]) >= 24, first[1]) == (True, "memory")
    # A deletion gives time: all stop after the same step, with a checkpoint on the volume; what one pod had in memory is gone with it.
    assert (int(second[0]) >= 60, second[1]) == (True, "/checkpoints")
    kube.wait_phase("calm", "Complete", 180)
    calm = kube.run("logs", "calm-worker-0-1")
    assert steps(log) == steps(calm)
    assert weights(log) == weights(calm)
