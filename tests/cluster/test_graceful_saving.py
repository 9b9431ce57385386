"""Workers whose pods end, or that wait for others: what they save, and that their probes leave them alone."""

import subprocess
from pathlib import Path

from tests.cluster.kube import IMAGE, Json, Kube, main_container

SAVE_SECONDS = 35
"""Longer than torchrun lets its ranks live after SIGTERM."""
SAVES = f"""
import os, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
for step in range(300 if os.environ["TRAINYARD_ATTEMPT"] == "1" else 5):
    print("step", step, flush=True)
    time.sleep(1)
    if asked:
        print("checkpoint begun", flush=True)
        for _ in range({SAVE_SECONDS}): time.sleep(1)
        print("checkpoint saved", flush=True)
        sys.exit(0)
"""
TOUCHES = """
import os, pathlib, time
for step in range(300 if os.environ["TRAINYARD_ATTEMPT"] == "1" else 25):
    pathlib.Path("/tmp/alive").touch(); time.sleep(1)
"""
SERVES = """
import http.server, os, threading, time
server = http.server.ThreadingHTTPServer(("", 8080), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
time.sleep(300 if os.environ["TRAINYARD_ATTEMPT"] == "1" else 25)
"""
BLOCKED = """
import os, pathlib, signal, sys, time
import torch, torch.distributed as dist
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
pathlib.Path("/tmp/pid").write_text(str(os.getpid()))
dist.init_process_group("gloo")
for step in range(300 if os.environ["TRAINYARD_ATTEMPT"] == "1" else 5):
    if asked and dist.get_rank() == 1:
        time.sleep(25)
        sys.exit(0)
    dist.all_reduce(torch.ones(1))
    time.sleep(0.2)
"""
"""Rank 0 waits in gloo for rank 1, which takes part no more: no handler of its own runs."""
FRESH = "test $(($(date +%s) - $(stat -c %Y /tmp/alive))) -lt 10"
LIVENESS: Json = {"initialDelaySeconds": 15, "periodSeconds": 2, "failureThreshold": 2, "timeoutSeconds": 5}


def training(name: str, command: list[str], **container: Json) -> Json:
    """Return a job of two workers with one rank each."""
    main = {
        "name": "trainer",
        "image": IMAGE,
        "command": command,
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
        **container,
    }
    return {
        "apiVersion": "trainyard.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "framework": "torch",
            "replicas": 2,
            "processesPerReplica": 1,
            "template": {"spec": {"terminationGracePeriodSeconds": 120, "containers": [main]}},
        },
    }


def rank_runs(kube: Kube, pod: str) -> bool:
    """Return whether the process runs that has written its PID in a pod."""
    return kube.run("exec", pod, "--", "sh", "-c", "kill -0 $(cat /tmp/pid) 2>/dev/null && echo runs; true") != ""


def test_ranks_save_and_waiting_workers_stay(kube: Kube, tmp_path: Path) -> None:
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"}, "data": {"train.py": SAVES}}
    saves = training("saves", ["torchrun", "/code/train.py"])
    saves["spec"]["template"]["spec"]["volumes"] = [{"name": "code", "configMap": {"name": "code"}}]
    main_container(saves)["volumeMounts"] = [{"name": "code", "mountPath": "/code"}]
    touches = training(
        "touches", ["python3", "-c", TOUCHES], livenessProbe={**LIVENESS, "exec": {"command": ["sh", "-c", FRESH]}}
    )
    serves = training("serves", ["python3", "-c", SERVES], livenessProbe={**LIVENESS, "httpGet": {"port": 8080}})
    jobs = ("saves", "touches", "serves", "blocked")
    kube.apply(code, saves, touches, serves, training("blocked", ["python3", "-c", BLOCKED]))
    for name in jobs:
        kube.wait_phase(name, "Running", 90)
    kube.until(lambda: rank_runs(kube, "blocked-worker-0-1"), 60, "rank 0")
    kube.until(lambda: "step 3" in kube.run("logs", "saves-worker-1-1"), 60, "the ranks below torchrun")
    before = {name: kube.uids(name)[f"{name}-worker-0-1"] for name in jobs}
    nodes = kube.run("get", "nodes", "-o", "name").split()
    with (tmp_path / "log").open("w") as file:
        words = kube.cluster.kubectl_command("--namespace", kube.namespace, "logs", "--follow", "saves-worker-1-1")
        follows = subprocess.Popen(words, env=kube.cluster.environment, stdout=file)
    try:
        # No replacement finds a place, so the workers that stay wait for it.
        kube.run("cordon", *nodes)
        for name in jobs:
            kube.delete_pod(f"{name}-worker-1-1")
        kube.until(lambda: not rank_runs(kube, "blocked-worker-0-1"), 15, "the blocked rank to be stopped")
        assert rank_runs(kube, "blocked-worker-1-1"), "the rank that blocks it still saves"
        follows.wait(SAVE_SECONDS + 60)
    finally:
        kube.run("uncordon", *nodes)
        follows.kill()
    assert (tmp_path / "log").read_text().split("\n")[-3:] == ["checkpoint begun", "checkpoint saved", ""]
    kept = kube.run("logs", "saves-worker-0-1")
    assert "checkpoint saved" in kept
    for name in jobs:
        status = kube.wait_phase(name, "Complete", 120)
        assert (status["restarts"].get("disruptions", 0), status["restarts"].get("failures", 0)) == (1, 0), name
        assert kube.uids(name)[f"{name}-worker-0-1"] == before[name]
        killed = [each for each in kube.find_all("events") if each["reason"] == "Killing"]
        assert not [each for each in killed if each["involvedObject"]["name"] == f"{name}-worker-0-1"]
