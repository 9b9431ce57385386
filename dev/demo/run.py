"""Run the demo job: it trains, one worker is killed, the group restarts from its checkpoint and finishes."""

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
KILL = """
import os, re, signal, sys
for pid in filter(str.isdecimal, os.listdir("/proc")):
    words = open(f"/proc/{pid}/cmdline", "rb").read()
    if int(pid) != os.getpid() and re.search(sys.argv[1].encode(), words) and not words.startswith(b"sh\\0"):
        os.kill(int(pid), signal.SIGKILL)
"""
METRICS = ("trainyard_jobs{", "trainyard_restarts_total")


@dataclass(frozen=True, slots=True)
class Progress:
    """The last progress that worker 0 logged."""

    step: int = 0
    line: str = ""


def train(cluster: Cluster) -> None:
    """Run the job until it finishes, and kill one worker meanwhile.

    Raises:
        DemoError: the job did not recover and complete as expected.
    """
    cluster.kube("delete", "trainingjob", JOB, "--ignore-not-found")
    say(f"kubectl apply -k {cluster.job}")
    manifests = cluster.kube("kustomize", str(ROOT / cluster.job)).replace(
        LOCAL_IMAGES["trainer"], cluster.images["trainer"]
    )
    sys.stdout.write(cluster.kube("apply", "-f", "-", stdin=manifests))
    _follow(cluster)
    _verify(cluster)


def kill(pattern: str) -> tuple[str, ...]:
    """Return the command that kills, by SIGKILL in its container, the processes whose command matches a pattern. Shells are spared.

    The kernel shields the container's first process, the agent, from signals of its own container. So the agent sees a child die, as it
    would on a real fault.
    """
    return ("python3", "-c", KILL, pattern)


def epilogue(cluster: Cluster) -> None:
    """Print what a user would inspect afterwards: the job, its events and the operator's metrics."""
    say("kubectl get tj")
    cluster.show_kube("get", "tj", JOB)
    say(f"events of the job (also: kubectl events --for tj/{JOB})")
    uid = json.loads(cluster.kube("get", "tj", JOB, "-o", "json"))["metadata"]["uid"]
    cluster.show_kube(
        *("get", "events", "--field-selector", f"involvedObject.uid={uid}", "--sort-by", ".metadata.creationTimestamp"),
        *("-o", "custom-columns=TYPE:.type,REASON:.reason,MESSAGE:.message"),
    )
    say("selected operator metrics (all jobs since the operator started)")
    # Only the leader reconciles jobs, so only its counters are above 0.
    holder = cluster.kube("--namespace", NAMESPACE, "get", "lease", RELEASE, "-o", "jsonpath={.spec.holderIdentity}")
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{holder.partition('_')[0]}:8080/proxy/metrics"
    lines = [line for line in cluster.kube("get", "--raw", path).splitlines() if line.startswith(METRICS)]
    sys.stdout.write("\n".join(f"  {line}" for line in lines if not line.endswith(" 0.0")) + "\n")


def _follow(cluster: Cluster) -> None:
    started = time.monotonic()
    killed = False
    last = ""
    while time.monotonic() - started < PATIENCE_SECONDS:
        status = _status(cluster)
        attempt = status.get("attempt", 1)
        progress = _progress(cluster)
        line = f"{status.get('phase', 'Pending'):<10} {status.get('ready', '0/3')} workers ready  attempt {attempt}  {progress.line}"
        if line != last:
            say(line)
            last = line
        if status.get("completionTime"):
            return
        if not killed and attempt == 1 and progress.step >= KILL_AFTER_STEP:
            _kill(cluster)
            killed = True
        time.sleep(1)
    raise DemoError(
        f"the job did not finish within {PATIENCE_SECONDS} s: run `kubectl describe tj {JOB}` for the reason"
    )


def _kill(cluster: Cluster) -> None:
    pod = f"{JOB}-worker-{VICTIM}-1"
    say(f"*** killing the training process of worker {VICTIM} (kubectl exec into pod {pod})")
    cluster.kube("exec", pod, "--", *kill(r"train\.py"))


def _verify(cluster: Cluster) -> None:
    status = _status(cluster)
    attempt = status["attempt"]
    log = cluster.kube("logs", *LOG_OF_WORKER_0, "--tail=-1")
    resumed = re.search(r"resumed from step (\d+)", log)
    accuracy = re.search(r"test accuracy (\d\.\d+)", log)
    if status["phase"] != "Complete" or not resumed or not accuracy or attempt != 2:
        raise DemoError(
            f"expected the job to resume and complete in attempt 2; it is {status['phase']} in attempt {attempt}:\n{log[-2000:]}"
        )
    say(f"attempt {attempt} resumed from step {resumed[1]} and finished with a test accuracy of {accuracy[1]}")
    if float(accuracy[1]) < 0.95:
        raise DemoError(f"the test accuracy {accuracy[1]} is below 0.95")
    failure = status["lastFailure"]
    reason = failure["message"].partition("\n")[0]
    say(f"cause of the restart: {failure['pod']} on {failure['node']}, exit code {failure['exitCode']}: {reason}")


def _status(cluster: Cluster) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(cluster.kube("get", "tj", JOB, "-o", "json")).get("status", {})
    return status


def _progress(cluster: Cluster) -> Progress:
    try:
        log = cluster.kube("logs", *LOG_OF_WORKER_0, "--tail=20")
    except DemoError:
        # The pod does not exist yet, or is already deleted.
        return Progress()
    lines = [line for line in log.splitlines() if re.search(r"step \d+|accuracy", line)]
    steps = re.findall(r"step (\d+)/\d+", log)
    return Progress(int(steps[-1]) if steps else 0, lines[-1] if lines else "")
