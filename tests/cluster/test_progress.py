"""The progress that programs report, on its way to `kubectl get`."""

import json
import re
from datetime import datetime
from typing import Any

import pytest

from dev.demo import install
from tests.cluster.elastic_group import LONG
from tests.cluster.kube import Json, Kube, job, main_container

TRAIN = """
import os, pathlib, time
from trainyard_agent import progress

rank, end = int(os.environ["RANK"]), pathlib.Path("/tmp/end")
progress(phase="start")
step = 0
while not end.exists():
    step += 1
    progress(step, total=1_000_000, loss=1.0 + rank)
    time.sleep(0.05)
progress(1_000_000, total=1_000_000, loss=0.5)
"""
UNEVEN = """
import os, time
from trainyard_agent import progress

own, step = (0.5 if os.environ["RANK"] == "2" else 0.1), 0
while not os.path.exists("/tmp/end"):
    step += 1
    progress(step, compute_seconds=own)
    time.sleep(0.5)
"""
HANG_SECONDS = 3
HANG = """
import os, signal, sys, time
import torch, torch.distributed as dist
from trainyard_agent import progress

def load(): time.sleep(600)
def stop(): os.kill(os.getpid(), signal.SIGSTOP)
dist.init_process_group("gloo")
for step in range(1_000):
    if step == 20 and dist.get_rank() == 2:
        print(f"waited for since {time.time()}", flush=True)
        {"load": load, "stop": stop}[sys.argv[1]]()
    dist.all_reduce(torch.ones(1))
    progress(step)
    time.sleep(0.1)
"""
REPORT = """
import http.client, os, socket, ssl, sys
from urllib.parse import urlsplit

at = urlsplit(os.environ["TRAINYARD_COORDINATOR"])
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
tls.load_verify_locations(cadata=os.environ["TRAINYARD_COORDINATOR_CA"])
file, body = sys.argv[1:]
for found in socket.getaddrinfo(at.hostname, at.port, type=socket.SOCK_STREAM):
    plain = socket.create_connection(found[4][:2], 10)
    connection = http.client.HTTPConnection(at.hostname, at.port)
    connection.sock = tls.wrap_socket(plain, server_hostname=at.hostname)
    connection.request("POST", "/v1/report", body, {"Authorization": "Bearer " + open(file).read()})
    answer = connection.getresponse()
    if answer.status != 503:
        print(answer.status, answer.read().decode())
"""
OWN = "/var/run/secrets/trainyard/token"
API_SERVER_S = "/var/run/secrets/kubernetes.io/serviceaccount/token"


def training(**spec: Any) -> Json:
    manifest = job(framework="torch", **spec)
    main_container(manifest)["command"] = ["python3", "-c", TRAIN]
    return manifest


def step(kube: Kube) -> int:
    reported: int = (kube.status("job").get("progress") or {}).get("step", 0)
    return reported


def test_progress_reaches_kubectl_get_after_leader_change(kube: Kube) -> None:
    kube.apply(training())
    kube.until(lambda: step(kube) > 0, 60, "a step")
    head, row = kube.run("get", "tj", "job").splitlines()
    assert int(row[head.index("STEP") :].split()[0]) > 0

    def both() -> bool:
        reported = kube.status("job")["progress"]
        return reported["loss"] == 1.5 and "stepSeconds" in reported

    kube.until(both, 60, "the mean of both reports, and the step time")
    reported = kube.status("job")["progress"]
    assert (reported["totalSteps"], reported["phase"]) == (1_000_000, "train")
    assert 0.04 < reported["stepSeconds"] < 5

    kube.until(
        lambda: (kube.status("job").get("goodput") or {}).get("productiveSeconds", 0) > 0, 30, "steps that count"
    )
    counted = kube.status("job")["goodput"]
    assert 0 < counted["ratio"] < 1
    assert counted["lostSeconds"]["startup"] > 0
    assert counted["lostSeconds"]["recovery"] == counted["lostSeconds"]["repeated"] == 0
    head, row = kube.run("get", "tj", "job", "-o", "wide").splitlines()
    assert 0 < float(row[head.index("GOODPUT") :].split()[0]) < 1

    system = kube.other(install.NAMESPACE)
    old = system.leader()
    system.delete_pod(old)
    system.until(lambda: system.leader() not in {"", old}, 30, "another leader")
    seen = step(kube)
    kube.until(lambda: step(kube) > seen, 90, "a step that was reported to the new leader")
    assert kube.status("job")["attempt"] == 1, "training was not disturbed"

    for pod in kube.pods("job"):
        kube.run("exec", pod["metadata"]["name"], "-c", "main", "--", "touch", "/tmp/end")  # noqa: S108 - in the pod
    status = kube.wait_phase("job", "Complete", 60)
    assert (status["progress"]["step"], status["progress"]["loss"]) == (1_000_000, 0.5), "its last report"
    goodput = status["goodput"]
    assert goodput["productiveSeconds"] > counted["productiveSeconds"], "the new leader continued to count"
    whole = goodput["productiveSeconds"] + sum(goodput["lostSeconds"].values())
    assert abs(whole - status["internal"]["activeSeconds"]) < 1.1, "the whole time, but for its last second"


def test_a_pod_reports_only_its_own_ranks(kube: Kube) -> None:
    kube.apply(job(framework="torch", replicas=2))
    kube.wait_phase("job", "Running")

    def report(file: str, *, attempt: int = 1, rank: int = 0) -> tuple[int, str | None]:
        body = json.dumps({"attempt": attempt, "ranks": {str(rank): {"step": 12}}})
        answer = kube.run("exec", "job-worker-0-1", "-c", "main", "--", "python3", "-c", REPORT, file, body)
        status, _, text = answer.partition(" ")
        return int(status), json.loads(text).get("reason")

    assert report(OWN, rank=1) == (403, "ForeignRank")
    assert report(OWN, attempt=2) == (409, "StaleAttempt")
    assert report(API_SERVER_S) == (401, "BadToken")
    assert "progress" not in kube.status("job")
    assert report(OWN) == (200, None)
    kube.until(lambda: step(kube) == 12, 30, "the step in the status")


@LONG
def test_straggling_rank_is_named(kube: Kube) -> None:
    """All steps take the same time; the ranks differ in their compute time."""
    manifest = training(replicas=4)
    main_container(manifest)["command"] = ["python3", "-c", UNEVEN]
    kube.apply(manifest)
    kube.until(lambda: kube.condition("job", "Straggling").get("status") == "True", 150, "a straggler")
    (slow,) = kube.status("job")["stragglers"]
    assert (slow["rank"], slow["pod"], slow["stepSeconds"], slow["factor"]) == (2, "job-worker-2-1", 0.5, 5)
    reported = (
        f"rank 2 (pod job-worker-2-1 on {slow['node']}) takes 0.5 s per step by itself, 5 times the median of 4 ranks"
    )
    assert kube.condition("job", "Straggling")["message"] == reported
    kube.until(lambda: [event for event in kube.find_all("events") if event["message"] == reported], 30, "its event")
    for pod in kube.pods("job"):
        kube.run("exec", pod["metadata"]["name"], "-c", "main", "--", "touch", "/tmp/end")  # noqa: S108 - in the pod
    status = kube.wait_phase("job", "Complete", 60)
    assert (status["attempt"], status.get("stragglers", [])) == (1, [])
    assert kube.condition("job", "Straggling")["status"] == "False"


@pytest.mark.parametrize(("does", "place"), [("load", " in load"), ("stop", "stopped by a signal")])
def test_hang_in_a_collective_names_the_blocking_rank(kube: Kube, does: str, place: str) -> None:
    # A worker that still runs when the job has failed would be deleted, and its log with it.
    manifest = job(
        framework="torch",
        replicas=3,
        recovery={"hangTimeoutSeconds": HANG_SECONDS, "maxRestarts": 0},
        lifecycle={"cleanPods": "None"},
    )
    main_container(manifest)["command"] = ["torchrun", "--no-python", "python3", "-c", HANG, does]
    kube.apply(manifest)
    failure = kube.wait_phase("job", "Failed", 90)["lastFailure"]
    assert (failure["rank"], failure["pod"], failure["exitCode"]) == (2, "job-worker-2-1", 91)
    # If the agent of the hung rank detects the hang first, that agent names it.
    reported = re.compile(r"rank 2 \(pod job-worker-2-1 on node|rank 2 is hung.*: no progress for 3 seconds")
    assert reported.match(failure["message"])
    assert place in failure["message"]
    assert reported.search(kube.condition("job", "Failed")["message"])
    kube.until(lambda: all(pod["status"]["phase"] == "Failed" for pod in kube.pods("job")), 30, "all to end")
    output = [kube.run("logs", f"job-worker-{index}-1") for index in range(3)]
    assert [" in all_reduce" in log for log in output] == [True, True, False]
    assert (" in load" in output[2]) == (does == "load"), "a stopped rank writes no stack"
    (begun,) = re.findall(r"waited for since (\S+)", output[2])
    ended = datetime.fromisoformat(failure["time"]).timestamp()
    assert ended - float(begun) < HANG_SECONDS + 5
