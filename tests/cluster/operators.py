"""The two replicas of the operator, seen by kubectl and from the machine that runs the nodes."""

from dev.demo import install
from tests.cluster.kube import Kube, processes


class Operators:
    """The two, seen by kubectl and from the machine that plays the nodes."""

    def __init__(self, kube: Kube) -> None:
        self.home = kube.other(install.NAMESPACE)
        self.home.until(self.leader, 30, "an operator to lead")
        self.home.until(self.both_ready, 60, "both operators to be ready")

    def leader(self) -> str:
        return self.home.leader()

    def process(self, pod: str) -> int:
        """The operator's process in a pod."""
        first, *_ = processes(self.home.get("pod", pod), "trainyard-operator")
        return first

    def both_ready(self) -> bool:
        deployment = self.home.get("deployment", install.RELEASE)
        return bool(deployment["status"].get("readyReplicas") == 2 == deployment["status"].get("replicas"))

    def container(self, pod: str) -> dict[str, object]:
        """How the container ended the last time."""
        status = self.home.get("pod", pod)["status"]["containerStatuses"][0]
        return dict(status.get("lastState", {}).get("terminated", {}))

    def renew(self) -> None:
        """New pods: in one whose container has ended before, the kubelet waits before it starts it again."""
        self.home.run("rollout", "restart", f"deployment/{install.RELEASE}")
        self.home.run("rollout", "status", f"deployment/{install.RELEASE}", "--timeout=120s")
        self.home.until(self.both_ready, 60, "both operators to be ready")
        self.home.until(self.leader, 30, "an operator to lead")

    def restarts(self, pod: str) -> int:
        return int(self.home.get("pod", pod)["status"]["containerStatuses"][0]["restartCount"])
