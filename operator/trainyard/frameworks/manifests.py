"""The manifests of a job: a pod a worker, one headless Service and, if asked for, a NetworkPolicy. The user's own fields always win."""

from collections.abc import Sequence
from copy import deepcopy

from trainyard.api.constants import (
    ANNOTATION_WORKERS,
    GROUP,
    KIND,
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    LABEL_ROLE,
    ROLE_WORKER,
    VERSION,
)
from trainyard.api.spec import DnsNames
from trainyard.domain.recovery.agent_injection import wants_agent
from trainyard.domain.state.snapshot import JobView
from trainyard.frameworks.affinity import avoid, on_demand, spot
from trainyard.frameworks.agent_wrapper import Source, bring_agent, has_agent
from trainyard.frameworks.coordinator_endpoint import Contact, introduce
from trainyard.frameworks.environment import environment
from trainyard.frameworks.worker_spec import Json, Worker, dns_names

UNREACHABLE_SECONDS = 30
"""How long a pod stays bound to a node that is gone; Kubernetes' own 300 would be five minutes of idle GPUs."""

SHM = "/dev/shm"  # noqa: S108 - a mount point in the pod, not a temporary file here

ANNOTATIONS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "sidecar.istio.io/inject": "false",
}
LABELS = {"sidecar.istio.io/inject": "false"}
"""A mesh's proxy would stand between the ranks, and would keep the pod from ever ending. Istio reads either."""


def worker_pod(worker: Worker, agent: Source | None = None, contact: Contact | None = None) -> Json:
    """The pod of a worker. `agent`: where the agent comes from, if one is brought; `contact`: how it reaches the operator, if it may."""
    job, template = worker.job, deepcopy(worker.spec.template)
    metadata, spec = template.get("metadata") or {}, template["spec"]
    for container in spec["containers"]:
        container["env"] = environment(worker, container)
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    _shared_memory(spec)
    if agent and wants_agent(job):
        bring_agent(worker, spec, agent)
    if contact and has_agent(spec):
        introduce(
            spec,
            contact,
            joins=job.status.internal.group is not None or job.status.is_joining(worker.index, worker.attempt),
        )
    spec["tolerations"] = [*(spec.get("tolerations") or []), *_tolerations(spec)]
    _place(worker, spec)
    spec |= {"restartPolicy": "Never", "hostname": worker.host, "subdomain": job.name}
    # Variables for every Service of the namespace would only slow the start and clash with the program's own.
    spec.setdefault("enableServiceLinks", False)
    if worker.host_network:
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": worker.pod_name,
            "namespace": job.namespace,
            "labels": LABELS | (metadata.get("labels") or {}) | _labels(worker),
            "annotations": ANNOTATIONS
            | (metadata.get("annotations") or {})
            | {ANNOTATION_WORKERS: str(worker.workers)},
            "ownerReferences": [_owner(job)],
        },
        "spec": spec,
    }


def service(job: JobView) -> Json:
    """The headless Service that gives workers their DNS names, before they are ready too."""
    named = {LABEL_JOB_UID: job.uid}
    if dns_names(job.spec) is DnsNames.MASTER:
        # Each worker that comes, becomes ready or goes would have the lists of all of them written anew (docs/design/0007).
        named[LABEL_INDEX] = "0"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _of_the_job(job),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": named},
    }


def network_policy(job: JobView, peers: Sequence[Json]) -> Json:
    """Who reaches the workers, on whatever port: they themselves, and `peers`, as in a NetworkPolicy's `from`.

    torch's stores, gloo and NCCL take whoever connects for one of the group.
    """
    workers: Json = {"podSelector": {"matchLabels": {LABEL_JOB_UID: job.uid}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _of_the_job(job),
        "spec": {**workers, "policyTypes": ["Ingress"], "ingress": [{"from": [workers, *peers]}]},
    }


def _of_the_job(job: JobView) -> Json:
    return {
        "name": job.name,
        "namespace": job.namespace,
        "labels": {LABEL_JOB_NAME: job.name, LABEL_JOB_UID: job.uid},
        "ownerReferences": [_owner(job)],
    }


def _labels(worker: Worker) -> dict[str, str]:
    return {
        LABEL_JOB_NAME: worker.job.name,
        LABEL_JOB_UID: worker.job.uid,
        LABEL_ROLE: ROLE_WORKER,
        LABEL_INDEX: str(worker.index),
        LABEL_ATTEMPT: str(worker.attempt),
    }


def _owner(job: JobView) -> Json:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _shared_memory(spec: Json) -> None:
    """A memory volume at /dev/shm for each container without one of its own.

    The runtime's 64 MiB are too small for data loaders and NCCL. No size limit: the kubelet then bounds it by the pod's
    memory limit, against which it counts.
    """
    volume = "trainyard-shm"
    volumes: list[Json] = spec.get("volumes") or []
    without = [
        c for c in spec["containers"] if all(m["mountPath"].rstrip("/") != SHM for m in c.get("volumeMounts") or [])
    ]
    # With the node's IPC namespace comes the node's own /dev/shm.
    if not without or spec.get("hostIPC") or any(v["name"] == volume for v in volumes):
        return
    spec["volumes"] = [*volumes, {"name": volume, "emptyDir": {"medium": "Memory"}}]
    for container in without:
        container["volumeMounts"] = [*(container.get("volumeMounts") or []), {"name": volume, "mountPath": SHM}]


def _place(worker: Worker, spec: Json) -> None:
    if spec.get("nodeName"):
        return
    elastic = worker.spec.elastic
    if elastic and elastic.on_demand_replicas is not None:
        choose = on_demand if worker.index < elastic.on_demand_replicas else spot
        choose(spec)
    avoid(spec, worker.job.status.suspect_nodes)


def _tolerations(spec: Json) -> list[Json]:
    # A toleration without an effect is for all of them, and one without a key for every taint.
    own = [t for t in spec.get("tolerations") or [] if t.get("effect") in {None, "", "NoExecute"}]
    keys = {t.get("key") or "" for t in own}
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": UNREACHABLE_SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        if keys.isdisjoint({key, ""})
    ]
