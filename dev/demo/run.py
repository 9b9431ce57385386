"""The story: a job trains, a worker is killed, the group starts anew from its checkpoint and finishes."""

import json
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

from dev.demo.commands import Cluster, DemoError, say
from dev.demo.install import NAMESPACE, RELEASE
from dev.demo.target import LOCAL_IMAGES, ROOT

JOB = "digits"
VICTIM = 1
LOG_OF_WORKER_0 = ("-l", f"trainyard.dev/job-name={JOB},trainyard.dev/index=0")
KILL_AFTER_STEP = 60
PATIENCE_SECONDS = 420
# `kill -9` of the training process. The container's first process, the agent, is out of reach of its own container's signals:
# it sees a child die, as it would on a real fault.
KILL = """
import os, signal
for pid in filter(str.isdecimal, os.listdir("/proc")):
    if int(pid) != os.getpid() and b"train.py" in open(f"/proc/{pid}/cmdline", "rb").read():
        os.kill(int(pid), signal.SIGKILL)
"""
METRICS = ("trainyard_jobs{", "trainyard_restarts_total", "trainyard_watch_age_seconds")


@dataclass(frozen=True, slots=True)
class Progress:
    """What worker 0 said last."""

    step: int = 0
    line: str = ""


def train(cluster: Cluster) -> None:
    """Run the job to its end, with one worker killed on the way. Raises DemoError if it does not go as it should."""
    cluster.kube("delete", "trainingjob", JOB, "--ignore-not-found")
    say(f"kubectl apply -k {cluster.job}")
    manifests = cluster.kube("kustomize", str(ROOT / cluster.job)).replace(
        LOCAL_IMAGES["trainer"], cluster.images["trainer"]
    )
    sys.stdout.write(cluster.kube("apply", "-f", "-", stdin=manifests))
    _follow(cluster)
    _judge(cluster)


def epilogue(cluster: Cluster) -> None:
    """What a user would look at afterwards, and how to go on."""
    say("kubectl get tj")
    cluster.show_kube("get", "tj", JOB)
    say(f"its events, which `kubectl events --for tj/{JOB}` tells too")
    uid = json.loads(cluster.kube("get", "tj", JOB, "-o", "json"))["metadata"]["uid"]
    cluster.show_kube(
        *("get", "events", "--field-selector", f"involvedObject.uid={uid}", "--sort-by", ".metadata.creationTimestamp"),
        *("-o", "custom-columns=TYPE:.type,REASON:.reason,MESSAGE:.message"),
    )
    say("some of the operator's metrics, which count all jobs since it started")
    # Of the two the one that acts: the other has done nothing that it could count.
    holder = cluster.kube("--namespace", NAMESPACE, "get", "lease", RELEASE, "-o", "jsonpath={.spec.holderIdentity}")
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{holder.partition('_')[0]}:8080/proxy/metrics"
    lines = [line for line in cluster.kube("get", "--raw", path).splitlines() if line.startswith(METRICS)]
    sys.stdout.write("\n".join(f"  {line}" for line in lines if not line.endswith(" 0.0")) + "\n")


def _follow(cluster: Cluster) -> None:
    began = time.monotonic()
    killed = False
    last = ""
    while time.monotonic() - began < PATIENCE_SECONDS:
        status = _status(cluster)
        attempt = status.get("attempt", 1)
        progress = _progress(cluster)
        line = f"{status.get('phase', 'Pending'):<10} {status.get('ready', '0/3')} workers  attempt {attempt}  {progress.line}"
        if line != last:
            say(line)
            last = line
        if status.get("completionTime"):
            return
        if not killed and attempt == 1 and progress.step >= KILL_AFTER_STEP:
            _kill(cluster)
            killed = True
        time.sleep(1)
    raise DemoError(f"the job did not finish within {PATIENCE_SECONDS} s: `kubectl describe tj {JOB}` tells why")


def _kill(cluster: Cluster) -> None:
    pod = f"{JOB}-worker-{VICTIM}-1"
    say(f"*** killing the training process of worker {VICTIM}, by kubectl exec into {pod}")
    cluster.kube("exec", pod, "--", "python3", "-c", KILL)


def _judge(cluster: Cluster) -> None:
    status = _status(cluster)
    attempt = status["attempt"]
    log = cluster.kube("logs", *LOG_OF_WORKER_0, "--tail=-1")
    resumed = re.search(r"resumed from step (\d+)", log)
    accuracy = re.search(r"test accuracy (\d\.\d+)", log)
    if status["phase"] != "Complete" or not resumed or not accuracy or attempt != 2:
        raise DemoError(f"the job ended as {status['phase']} in attempt {attempt}:\n{log[-2000:]}")
    say(f"attempt {attempt} resumed from step {resumed[1]} and finished with a test accuracy of {accuracy[1]}")
    if float(accuracy[1]) < 0.95:
        raise DemoError(f"a test accuracy of {accuracy[1]} is below 0.95")
    failure = status["lastFailure"]
    why = failure["message"].partition("\n")[0]
    say(f"why there was an attempt 2: {failure['pod']} on {failure['node']}, exit code {failure['exitCode']}: {why}")


def _status(cluster: Cluster) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(cluster.kube("get", "tj", JOB, "-o", "json")).get("status", {})
    return status


def _progress(cluster: Cluster) -> Progress:
    try:
        log = cluster.kube("logs", *LOG_OF_WORKER_0, "--tail=20")
    except DemoError:
        # Not there yet, or not any more.
        return Progress()
    told = [line for line in log.splitlines() if re.search(r"step \d+|accuracy", line)]
    steps = re.findall(r"step (\d+)/\d+", log)
    return Progress(int(steps[-1]) if steps else 0, told[-1] if told else "")
