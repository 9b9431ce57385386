"""Check at the end of every test: its jobs leave no objects, and no operator reconciles in a loop."""

import re
import time
import urllib.request
from collections.abc import Sequence

from dev.demo import install
from dev.demo.commands import Cluster
from tests.cluster.kube import Kube

CLEANUP_SECONDS = 60
RECONCILES, RECONCILES_PER_SECOND = 200, 3
"""A test costs at most so many reconciles, and so many more for each second that it waits. A loop without a pause makes tens a second."""
COUNTED = re.compile(r'^controller_runtime_reconcile_total\{[^}]*controller="trainingjob"[^}]*\} (\S+)$', re.MULTILINE)


def kinds(cluster: Cluster) -> str:
    """Return all namespaced kinds, as kubectl takes them."""
    return ",".join(cluster.kube("api-resources", "--namespaced", "--verbs=list", "--output=name").split())


def left_over(kube: Kube, every: str) -> str:
    """Delete all jobs of a namespace. Return a sentence about the objects that they leave, or an empty text."""
    kube.run("delete", "tj", "--all", "--wait=false")
    deadline = time.monotonic() + CLEANUP_SECONDS
    while left := kube.run("get", every, "--selector=trainyard.dev/job-name", "--output=name").split():
        if time.monotonic() > deadline:
            return (
                f"{CLEANUP_SECONDS} s after their jobs were deleted there are still {' '.join(left)}\n{kube.picture()}"
            )
        time.sleep(0.25)
    return ""


class Reconciles:
    """Count the reconciles of all operators since this was made, by their own metrics."""

    def __init__(self, cluster: Cluster) -> None:
        self._home = Kube(cluster, install.NAMESPACE)
        self._began, self._before = time.monotonic(), self._read()

    def too_many(self) -> str:
        """Return a sentence if there were more than a test can explain, or an empty text."""
        seconds, now = time.monotonic() - self._began, self._read()
        # The counter of a restarted process starts at 0.
        made = sum(
            count - before if (before := self._before.get(uid, 0)) <= count else count for uid, count in now.items()
        )
        allowed = RECONCILES + RECONCILES_PER_SECOND * seconds
        if made <= allowed:
            return ""
        return f"{made:.0f} reconciles in {seconds:.0f} s: more than {allowed:.0f} are a loop"

    def _read(self) -> dict[str, float]:
        pods = self._home.find_all("pods", install.OPERATORS[1])
        reports = {pod["metadata"]["uid"]: _reports(pod["status"].get("podIP", "")) for pod in pods}
        return {uid: sum(map(float, counts)) for uid, counts in reports.items() if counts}


def _reports(address: str) -> Sequence[str]:
    """Return the counters of an operator. One that is starting or exiting has none."""
    try:
        with urllib.request.urlopen(f"http://{address}:8080/metrics", timeout=5) as answer:
            return COUNTED.findall(answer.read().decode())
    except OSError:
        return []
