"""Rendezvous of workers: their environment variables, and collectives of real torch processes."""

import re
from typing import Any

from dev.demo.target import ROOT
from tests.cluster.kube import Json, Kube, job, main_container

SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(value)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {value.item():.0f}", flush=True)
dist.barrier()
dist.destroy_process_group()
"""
ENVIRONMENT = "env | sort; exit 0"


def environment(kube: Kube, pod: str, container: str = "main") -> dict[str, str]:
    lines = kube.run("logs", pod, "-c", container).splitlines()
    assert len({line.partition("=")[0] for line in lines}) == len(lines)
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_plain_python_with_one_process_a_worker(kube: Kube) -> None:
    manifest = job(replicas=2, framework="torch")
    main_container(manifest)["command"] = ["python3", "-c", SUM]
    kube.apply(manifest)
    kube.wait_phase("job", "Complete", 120)
    assert "rank 1 of 2: sum 3" in kube.run("logs", "job-worker-1-1")


def test_torchrun_with_two_processes_a_worker(kube: Kube) -> None:
    manifest = job(replicas=2, framework="torch", processesPerReplica=2)
    main_container(manifest)["command"] = ["sh", "-c", f"cat > /tmp/sum.py <<'E'\n{SUM}\nE\nexec torchrun /tmp/sum.py"]
    kube.apply(manifest)
    kube.wait_phase("job", "Complete", 180)
    output = kube.run("logs", "job-worker-0-1") + kube.run("logs", "job-worker-1-1")
    assert sorted(re.findall(r"rank (\d) of 4: sum 10", output)) == ["0", "1", "2", "3"]


BOOM = """
import os
if os.environ["RANK"] == "3" and os.environ["TRAINYARD_ATTEMPT"] == "1":
    raise ValueError("boom")
if os.environ["TRAINYARD_ATTEMPT"] == "1":
    import time
    time.sleep(600)
"""
GREEDY = """
import os, subprocess, sys, time
if os.environ["RANK"] == "0":
    subprocess.run([sys.executable, "-c", "x = 10**9 * b'x'"], check=True)
time.sleep(600)
"""

HANGS = """
import os, time
from trainyard_agent import progress
def load_a_batch():
    while True: pass
def wait_for_the_others(): time.sleep(600)
for step in range(8):
    progress(step)
    time.sleep(0.5)
if os.environ["TRAINYARD_ATTEMPT"] == "1":
    load_a_batch() if os.environ["RANK"] == "3" else wait_for_the_others()
"""
POISON = """
from trainyard_agent import progress
for step in range(5):
    progress(step)
raise ValueError("NaN in the batch")
"""


def agent(script: str, replicas: int, processes: int = 2, **spec: Any) -> Json:
    """Return a job whose workers start ranks by the agent."""
    manifest = job(replicas=replicas, framework="torch", processesPerReplica=processes, **spec)
    main_container(manifest)["command"] = ["trainyard-agent", "--", "python3", "-c", script]
    return manifest


def test_the_agent_with_two_processes_a_worker(kube: Kube) -> None:
    kube.apply(agent(SUM, 2))
    kube.wait_phase("job", "Complete", 180)
    output = kube.run("logs", "job-worker-0-1") + kube.run("logs", "job-worker-1-1")
    assert sorted(re.findall(r"rank (\d) of 4: sum 10", output)) == ["0", "1", "2", "3"]


def test_the_agent_names_the_rank_and_its_exception(kube: Kube) -> None:
    kube.apply(agent(BOOM, 2))
    status = kube.wait_phase("job", "Complete", 120)
    assert (status["attempt"], status["restarts"]["failures"]) == (2, 1)
    failure = status["lastFailure"]
    assert (failure["rank"], failure["pod"], failure["exitCode"]) == (3, "job-worker-1-1", 1)
    assert failure["message"].startswith("rank 3 exited with code 1: ValueError: boom\nTraceback")
    assert "failed with exit code 1 (Error): rank 3 exited with code 1: ValueError: boom" in kube.run("get", "events")


def test_agent_detects_a_child_that_was_oom_killed(kube: Kube) -> None:
    manifest = agent(GREEDY, 1)
    main_container(manifest)["resources"]["limits"] = {"memory": "128Mi"}
    kube.apply(manifest)
    status = kube.wait_phase("job", "Failed", 120)
    assert (status["attempt"], status["internal"]["restartBudget"]["outOfMemory"]) == (2, 2)
    assert kube.condition("job", "Failed")["reason"] == "NonRetryable"
    assert (
        "; the job failed: out of memory 2 times without progress with a limit of 128Mi: "
        in kube.condition("job", "Failed")["message"]
    )
    failure = status["lastFailure"]
    assert failure["reason"] == "OOMKilled"
    message = failure["message"].splitlines()[0]
    assert re.match(
        r"rank 0 .*: out of memory: the kernel killed 1 of its processes, peak use \d+ MiB, limit ", message
    )
    assert message.endswith("limit 128 MiB")


def test_hung_rank_is_named_and_the_group_restarts(kube: Kube) -> None:
    kube.apply(agent(HANGS, 1, processes=4, recovery={"hangTimeoutSeconds": 10}))
    status = kube.wait_phase("job", "Complete", 120)
    assert (status["attempt"], status["restarts"]["failures"], status["restarts"]["hangs"]) == (2, 1, 1)
    failure = status["lastFailure"]
    assert (failure["rank"], failure["exitCode"]) == (3, 91)
    assert re.match(
        r"rank 3 is hung at \S+ in load_a_batch: no progress for \d+ seconds after step 7 ", failure["message"]
    )
    assert "; all other ranks of the worker are elsewhere\nrank 0: " in failure["message"]
    assert "rank 3 is hung at " in kube.run("get", "events")


def test_job_failing_repeatedly_at_one_step_fails(kube: Kube) -> None:
    kube.apply(agent(POISON, 1))
    status = kube.wait_phase("job", "Failed", 120)
    assert (status["attempt"], status["restarts"]["failures"], status["lastFailure"]["step"]) == (3, 3, 4)
    assert kube.condition("job", "Failed")["reason"] == "NoProgress"
    message = kube.condition("job", "Failed")["message"]
    assert "ValueError: NaN in the batch" in message
    assert "; the job failed: the last 3 failures happened after step 4 (recovery.noProgressLimit is 3). Fix" in message


def test_the_environment_of_a_torch_worker(kube: Kube) -> None:
    manifest = job(replicas=2, framework="torch", script=ENVIRONMENT)
    main_container(manifest)["resources"] = {
        "requests": {"cpu": "500m"},
        "limits": {"nvidia.com/gpu": "2"},
    }
    kube.apply(manifest)
    kube.wait_phase("job", "Complete")
    found = environment(kube, "job-worker-1-1")
    uid = kube.get("tj", "job")["metadata"]["uid"]
    assert found["MASTER_ADDR"] == "job-worker-0.job"
    assert found["PET_NNODES"] == "2"
    assert found["PET_NPROC_PER_NODE"] == "2", "the GPUs of the main container"
    assert found["PET_RDZV_ID"] == f"{uid}-1"
    assert found["PET_LOCAL_ADDR"] == "job-worker-1.job"
    assert "is_host=0" in found["PET_RDZV_CONF"]
    assert "is_host=1" in environment(kube, "job-worker-0-1")["PET_RDZV_CONF"]
    assert "RANK" not in found, "with two processes per worker, only torchrun knows the ranks"
    assert len(found["FAKE_VISIBLE_DEVICES"].split(",")) == 2, "the device plugin gave two"
    assert found["HOSTNAME"] == "job-worker-1"


def test_user_environment_is_preserved_and_reported(kube: Kube) -> None:
    manifest = job(replicas=1, framework="torch", script=ENVIRONMENT)
    main_container(manifest)["env"] = [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "MASTER_PORT", "value": "4711"},
        {"name": "WHO", "value": "worker $(RANK)"},
    ]
    kube.apply(manifest)
    kube.wait_phase("job", "Complete")
    found = environment(kube, "job-worker-0-1")
    assert (found["NCCL_DEBUG"], found["MASTER_PORT"], found["WHO"]) == ("INFO", "4711", "worker 0")
    names = [v["name"] for v in kube.get("pod", "job-worker-0-1")["spec"]["containers"][0]["env"]]
    assert len(names) == len(set(names))
    events = kube.run("get", "events")
    assert "UserEnvironmentPreserved" in events
    assert "MASTER_PORT" in events


def test_a_pod_with_two_containers(kube: Kube) -> None:
    manifest = job(replicas=1, framework="torch", script=ENVIRONMENT)
    sidecar = main_container(manifest) | {"name": "sidecar", "command": ["sh", "-c", "env | sort; sleep 600"]}
    manifest["spec"]["template"]["spec"]["containers"].append(sidecar)
    kube.apply(manifest)
    kube.wait_phase("job", "Complete")
    kube.until(lambda: not kube.pods("job"), 30, "the pod whose sidecar still runs to be cleaned up")


def test_every_app_container_gets_the_environment(kube: Kube) -> None:
    manifest = job(replicas=1, framework="torch")
    sidecar = main_container(manifest) | {"name": "sidecar", "command": ["sh", "-c", "env | sort; sleep 600"]}
    manifest["spec"]["template"]["spec"]["containers"].append(sidecar)
    kube.apply(manifest)
    kube.wait_phase("job", "Running")
    found = environment(kube, "job-worker-0-1", "sidecar")
    assert (found["RANK"], found["WORLD_SIZE"]) == ("0", "1")
    assert "/dev/shm" in kube.run("exec", "job-worker-0-1", "-c", "sidecar", "--", "df", "/dev/shm")  # noqa: S108 - in the pod


def test_the_readmes_first_job(kube: Kube) -> None:
    kube.run("apply", "-f", str(ROOT / "examples/hello/job.yaml"))
    kube.wait_phase("hello", "Complete", 180)
    assert "rank 0 of 4: the ranks add up to 6" in kube.run("logs", "hello-worker-0-1")
