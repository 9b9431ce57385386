"""Tell whether the pods of a job can find their master by its DNS name, as far as the template shows it. Pure."""

from typing import TYPE_CHECKING, Any

from trainyard.api.spec import TrainingJobSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

USES_CLUSTER_DNS = frozenset({None, "ClusterFirst", "ClusterFirstWithHostNet"})


def dns_problem(spec: TrainingJobSpec, workers: int) -> str:
    """Return why the workers cannot find each other by name, and the fix; empty where they can, or where one is alone.

    The name of the master lacks the domain of the namespace: a pod with its own search domains for Services finds it too.
    """
    pod: Mapping[str, Any] = spec.template["spec"]
    policy, host_network = pod.get("dnsPolicy"), bool(pod.get("hostNetwork"))
    # With hostNetwork, the kubelet takes ClusterFirst for Default.
    unused = policy not in USES_CLUSTER_DNS or (policy == "ClusterFirst" and host_network)
    searches = (pod.get("dnsConfig") or {}).get("searches") or ()
    if workers < 2 or not unused or any(".svc" in search for search in searches):
        return ""
    which = f"dnsPolicy {policy}{' with hostNetwork' if host_network else ''}"
    return f"{which} does not use the cluster's DNS, so that workers cannot find their master: leave dnsPolicy out"
