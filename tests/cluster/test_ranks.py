"""Ranks that fail or train apart under a command that succeeds, and a program that starts its own ranks."""

from typing import Any

from tests.cluster.kube import Json, Kube, job, main_container

JOIN = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"one of {int(total)}", flush=True)
if "wait" in sys.argv: time.sleep(15)
if "fail" in sys.argv and dist.get_rank() == 1: raise ValueError("boom")
dist.destroy_process_group()
"""
SPAWN = """
import time, torch, torch.distributed as dist, torch.multiprocessing as mp
def train(local, count):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29599", rank=local, world_size=count)
    total = torch.tensor([local])
    dist.all_reduce(total)
    print(f"rank {local} of {count}: sum {total.item()}", flush=True)
    time.sleep(3)
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
"""


def training(command: str, replicas: int = 2, **spec: Any) -> Json:
    """Return a job whose workers write a program to a file, and run the command."""
    script = f"cat >/tmp/train.py <<'END'\n{JOIN}\nEND\ncd /tmp\n{command}"
    made = job(framework="torch", replicas=replicas, script=script, **spec)
    main_container(made)["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}}
    return made


def spawning(**spec: Any) -> tuple[Json, Json]:
    """Return a program that starts its own two ranks, and a job with two GPUs that runs it as its command."""
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"train.py": SPAWN}}
    made = training("", replicas=1, **spec)
    main = main_container(made)
    main |= {"command": ["python3", "/code/train.py"], "volumeMounts": [{"name": "code", "mountPath": "/code"}]}
    main["resources"]["limits"] = {"nvidia.com/gpu": "2"}
    made["spec"]["template"]["spec"]["volumes"] = [{"name": "code", "configMap": {"name": "code"}}]
    return code, made


def warning(kube: Kube, kind: str) -> str:
    """Return the message of a condition that is True, and check that an event has it too; empty where it is not True."""
    found = kube.condition("job", kind)
    if found.get("status") != "True":
        return ""
    notes = [event["message"] for event in kube.find_all("events") if event["reason"] == found["reason"]]
    assert [note[:100] for note in notes] == [found["message"][:100]]
    return str(found["message"])


def test_pipeline_that_hides_a_failure_is_reported(kube: Kube) -> None:
    kube.apply(training("python3 train.py fail 2>&1 | tee log"))
    status = kube.wait_phase("job", "Complete", 90)
    message = warning(kube, "FailureHidden")
    assert "worker 1 (pod job-worker-1-1" in message
    assert "rank 1 exited with code 1: ValueError: boom (at train.py:8 in <module>)" in message
    assert "set -o pipefail" in message
    assert (status["attempt"], warning(kube, "GroupSplit")) == (1, "")


def test_strict_mode_fails_the_job(kube: Kube) -> None:
    recovery = {"hiddenFailures": "Fail", "maxRestarts": 0}
    kube.apply(training("torchrun train.py fail 2>&1 | tee log; echo done", recovery=recovery))
    kube.wait_phase("job", "Failed", 90)
    failed = kube.condition("job", "Failed")
    assert failed["reason"] == "RestartsExhausted"
    assert "rank 1 exited with code 1: ValueError: boom" in failed["message"]
    assert kube.status("job")["lastFailure"]["rank"] == 1


def test_two_groups_of_one_are_reported(kube: Kube) -> None:
    kube.apply(training("RANK=0 WORLD_SIZE=1 MASTER_ADDR=localhost python3 train.py wait"))
    kube.wait_phase("job", "Complete", 90)
    message = warning(kube, "GroupSplit")
    assert message.startswith("2 groups of 1 rank train beside each other; expected was one group of 2 ranks")
    assert "start the program with python or torchrun" in message
    assert warning(kube, "FailureHidden") == ""


def test_one_process_without_a_group_is_reported(kube: Kube) -> None:
    kube.apply(training("python3 -c 'import torch, time; time.sleep(3)'; true", processesPerReplica=2))
    kube.wait_phase("job", "Complete", 90)
    message = warning(kube, "GroupSplit")
    assert message.startswith("the command runs one training process in each worker, without a process group")
    assert "expected was one group of 4 ranks" in message


def test_healthy_torchrun_causes_no_warning(kube: Kube) -> None:
    kube.apply(training("torchrun train.py 2>&1 | tee log", processesPerReplica=2))
    kube.wait_phase("job", "Complete", 90)
    assert "one of 4" in kube.run("logs", "job-worker-0-1")
    assert (warning(kube, "FailureHidden"), warning(kube, "GroupSplit")) == ("", "")


def test_program_with_own_ranks_fails_at_once(kube: Kube) -> None:
    kube.apply(*spawning())
    kube.wait_phase("job", "Failed", 90)
    failed = kube.condition("job", "Failed")
    assert failed["reason"] == "NonRetryable"
    assert "set processesPerReplica: 1" in failed["message"]
    assert (kube.status("job")["attempt"], len(kube.pods("job"))) == (1, 1)


def test_program_with_own_ranks_completes_when_started_once(kube: Kube) -> None:
    kube.apply(*spawning(processesPerReplica=1))
    status = kube.wait_phase("job", "Complete", 90)
    assert (status["attempt"], kube.run("logs", "job-worker-0-1").count("of 2: sum 1")) == (1, 2)
