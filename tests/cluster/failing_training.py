"""A training whose ranks form a process group in each attempt, and that fails on request."""

from typing import Any

from dev.demo.commands import DemoError
from tests.cluster.kube import Json, Kube, job, main_container

TRAIN = """
import os, pathlib, time
import torch, torch.distributed as dist
from trainyard_agent import progress

attempt = int(os.environ["TRAINYARD_ATTEMPT"])
dist.init_process_group("gloo")
rank, fault = dist.get_rank(), pathlib.Path("/tmp/fault")
pathlib.Path("/tmp/pid").write_text(str(os.getpid()))
print(f"attempt {attempt} at port {os.environ['MASTER_PORT']} as one of {dist.get_world_size()}", flush=True)
if os.environ.get("FAIL_UNTIL") and attempt < int(os.environ["FAIL_UNTIL"]) and rank == 1:
    raise ConnectionError(f"boom in attempt {attempt}")
for step in range(1, 100_000):
    dist.all_reduce(torch.ones(1))
    progress(step)
    pathlib.Path("/tmp/step").write_text(str(step))
    time.sleep(0.1)
    if fault.exists():
        fault.unlink()
        raise RuntimeError("boom")
"""


def training(replicas: int = 3, env: dict[str, str] | None = None, **recovery: Any) -> Json:
    manifest = job(framework="torch", replicas=replicas, recovery=recovery)
    main = main_container(manifest)
    main["command"] = ["python3", "-c", TRAIN]
    main["env"] = [{"name": name, "value": value} for name, value in (env or {}).items()]
    return manifest


def runs(kube: Kube, attempt: int, seconds: float = 120) -> Json:
    """Return the status once all ranks have trained in this attempt."""

    def trains() -> bool:
        try:
            output = kube.run("logs", "-l", "trainyard.dev/job-name=job", "--tail=-1")
        except DemoError:
            # A container that has yet to start has no log.
            return False
        met = output.count(f"attempt {attempt} at port {29499 + attempt}")
        return bool(met == kube.get("tj", "job")["spec"]["replicas"] and kube.status("job")["attempt"] == attempt)

    kube.until(trains, seconds, f"attempt {attempt} to train")
    kube.wait_phase("job", "Running")
    return kube.status("job")


def fail(kube: Kube, pod: str) -> None:
    kube.run("exec", pod, "-c", "main", "--", "touch", "/tmp/fault")  # noqa: S108 - in the pod
