"""What has to be so at the end of every test, whatever it was about: its jobs leave nothing, and no operator has gone round in circles."""

import re
import time
import urllib.request
from collections.abc import Sequence

from dev.demo import install
from dev.demo.commands import Cluster
from tests.cluster.kube import Kube

LEAVE_SECONDS = 60
PASSES, PASSES_A_SECOND = 200, 3
"""So many cost what a test does, and more than so many a second what it waits for: a loop without a pause makes tens."""
COUNTED = re.compile(r'^controller_runtime_reconcile_total\{[^}]*controller="trainingjob"[^}]*\} (\S+)$', re.MULTILINE)


def kinds(cluster: Cluster) -> str:
    """All kinds that live in namespaces, as kubectl takes them."""
    return ",".join(cluster.kube("api-resources", "--namespaced", "--verbs=list", "--output=name").split())


def left_over(kube: Kube, every: str) -> str:
    """What the jobs of a namespace leave when they are deleted: nothing, or a sentence."""
    kube.run("delete", "tj", "--all", "--wait=false")
    deadline = time.monotonic() + LEAVE_SECONDS
    while left := kube.run("get", every, "--selector=trainyard.dev/job-name", "--output=name").split():
        if time.monotonic() > deadline:
            return f"{LEAVE_SECONDS} s after their jobs were deleted there are still {' '.join(left)}\n{kube.picture()}"
        time.sleep(0.25)
    return ""


class Passes:
    """How often the operators look at jobs, by what they tell of it themselves."""

    def __init__(self, cluster: Cluster) -> None:
        self._home = Kube(cluster, install.NAMESPACE)
        self._began, self._before = time.monotonic(), self._read()

    def too_many(self) -> str:
        """Whether they have looked more often than anything in a test is a reason for: nothing, or a sentence."""
        seconds, now = time.monotonic() - self._began, self._read()
        # The count of a restarted process starts at 0.
        made = sum(
            count - before if (before := self._before.get(uid, 0)) <= count else count for uid, count in now.items()
        )
        allowed = PASSES + PASSES_A_SECOND * seconds
        return "" if made <= allowed else f"{made:.0f} passes in {seconds:.0f} s: more than {allowed:.0f} are a loop"

    def _read(self) -> dict[str, float]:
        pods = self._home.find_all("pods", install.OPERATORS[1])
        reports = {pod["metadata"]["uid"]: _reports(pod["status"].get("podIP", "")) for pod in pods}
        return {uid: sum(map(float, counts)) for uid, counts in reports.items() if counts}


def _reports(address: str) -> Sequence[str]:
    """Of an operator. One that only starts, or ends, tells nothing."""
    try:
        with urllib.request.urlopen(f"http://{address}:8080/metrics", timeout=5) as answer:
            return COUNTED.findall(answer.read().decode())
    except OSError:
        return []
