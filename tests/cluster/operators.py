"""The two replicas of the operator: their Lease by kubectl, their processes on this machine, which runs the nodes."""

from dev.demo import install
from tests.cluster.kube import Kube, processes


class Operators:
    """Both replicas."""

    def __init__(self, kube: Kube) -> None:
        self.home = kube.other(install.NAMESPACE)
        self.home.until(self.leader, 30, "an operator to lead")
        self.home.until(self.both_ready, 60, "both operators to be ready")

    def leader(self) -> str:
        return self.home.leader()

    def process(self, pod: str) -> int:
        """Return the PID of the operator in a pod."""
        first, *_ = processes(self.home.get("pod", pod), "trainyard-operator")
        return first

    def both_ready(self) -> bool:
        deployment = self.home.get("deployment", install.RELEASE)
        return bool(deployment["status"].get("readyReplicas") == 2 == deployment["status"].get("replicas"))

    def container(self, pod: str) -> dict[str, object]:
        """Return the last termination of the container."""
        status = self.home.get("pod", pod)["status"]["containerStatuses"][0]
        return dict(status.get("lastState", {}).get("terminated", {}))

    def renew(self) -> None:
        """Replace the pods: the kubelet delays the restart of a container that has exited before."""
        self.home.run("rollout", "restart", f"deployment/{install.RELEASE}")
        self.home.run("rollout", "status", f"deployment/{install.RELEASE}", "--timeout=120s")
        self.home.until(self.both_ready, 60, "both operators to be ready")
        self.home.until(self.leader, 30, "an operator to lead")

    def restarts(self, pod: str) -> int:
        return int(self.home.get("pod", pod)["status"]["containerStatuses"][0]["restartCount"])
