"""The manifests of a job: a pod a worker, a headless Service and, if configured, a NetworkPolicy. The user's fields
win. Pure.
"""

from collections.abc import Sequence
from copy import deepcopy

from trainyard.api.constants import (
    ANNOTATION_GENERATION,
    ANNOTATION_MAIN_CONTAINER,
    ANNOTATION_NETWORK,
    ANNOTATION_RANK_ORDER,
    ANNOTATION_TEMPLATE_HASH,
    ANNOTATION_WORKERS,
    GROUP,
    KIND,
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    LABEL_ROLE,
    VERSION,
)
from trainyard.api.network import DnsNames
from trainyard.api.roles import is_worker
from trainyard.api.scheduling import RankOrder
from trainyard.domain.state.snapshot import JobView
from trainyard.frameworks.affinity import avoid_suspect_nodes, prefer_spot, require_on_demand
from trainyard.frameworks.agent_wrapper import AgentImage, has_agent, starts_injected_agent, with_agent
from trainyard.frameworks.compute_domain import compute_domain as compute_domain_of, with_channel
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint, with_coordinator
from trainyard.frameworks.environment import environment
from trainyard.frameworks.pod_metadata import PodMetadata
from trainyard.frameworks.probes import with_waiting_probes
from trainyard.frameworks.worker_spec import Json, Worker, dns_names
from trainyard.scheduling.network_profile import NamedProfile
from trainyard.scheduling.worker_network import WorkerNetwork, covers, with_network, with_sidecars

UNREACHABLE_SECONDS = 30
"""How long a pod stays bound to an unreachable node; Kubernetes' default of 300 would be five minutes of idle GPUs."""

SHM_VOLUME = "trainyard-shm"
SHM = "/dev/shm"  # noqa: S108 - a mount point in the pod, not a temporary file here

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""The container that `kubectl logs` and `kubectl exec` choose."""


def worker_pod(
    worker: Worker,
    agent: AgentImage | None = None,
    endpoint: CoordinatorEndpoint | None = None,
    defaults: PodMetadata | None = None,
    network: NamedProfile | None = None,
    *,
    orders_ranks: bool = False,
) -> Json:
    """Return the pod of a worker.

    `agent`: the image of the agent, if one is injected; `endpoint`: the coordinator, if any; `defaults`: the labels and
    annotations that the user may replace. `network`: the network profile of the job, if it has one. `orders_ranks`: whether its
    ranks wait for the order of workers, where its agent can.
    """
    job = worker.job
    made = _with_network(worker, network)
    template = made.template
    given = template.get("metadata") or {}
    metadata = (defaults or PodMetadata()).overridden(given.get("labels") or {}, given.get("annotations") or {})
    orders_ranks = orders_ranks and agent is not None and endpoint is not None
    spec = _pod_spec(worker, made, agent, endpoint, orders_ranks=orders_ranks)
    # The user's own agent may not know the order.
    orders_ranks = orders_ranks and starts_injected_agent(spec["containers"][0])
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": worker.pod_name,
            "namespace": job.namespace,
            "labels": {**metadata.labels, **_labels(worker)},
            "annotations": {
                DEFAULT_CONTAINER: template["spec"]["containers"][0]["name"],
                **metadata.annotations,
                **_annotations(worker),
                **({ANNOTATION_NETWORK: made.stamp} if made.stamp else {}),
                **({ANNOTATION_RANK_ORDER: RankOrder.PLACEMENT.value} if orders_ranks else {}),
            },
            "ownerReferences": [_owner(job)],
        },
        "spec": spec,
    }


def _with_network(worker: Worker, network: NamedProfile | None) -> WorkerNetwork:
    """Return the worker's template, with what its network needs."""
    template = deepcopy(worker.spec.template)
    if network is None or not covers(network, worker.index, template):
        return WorkerNetwork(template)
    return with_network(template, network)


def _pod_spec(
    worker: Worker,
    made: WorkerNetwork,
    agent: AgentImage | None,
    endpoint: CoordinatorEndpoint | None,
    *,
    orders_ranks: bool,
) -> Json:
    """Return the template's `spec`, completed step by step."""
    job = worker.job
    # Sidecars of the network are none of the template's containers, and get none of their variables.
    spec = with_sidecars(_with_environment(worker, made.template["spec"]), made.sidecars)
    spec = _with_shared_memory(spec)
    if agent and job.wants_agent:
        spec = with_agent(worker, spec, agent)
    if endpoint and has_agent(spec):
        joins = job.status.internal.group is not None or job.status.is_joining(worker.index, worker.attempt)
        waits = joins or orders_ranks or job.spec.framework.starts_together or job.is_lone(worker.index)
        spec = with_waiting_probes(with_coordinator(spec, endpoint, waits=waits))
    spec = with_channel(worker, spec)
    spec = {**spec, "tolerations": [*(spec.get("tolerations") or []), *_tolerations(spec)]}
    spec = _with_node_affinity(worker, spec)
    # Variables for every Service of the namespace would slow the start and clash with the program's own.
    defaults: Json = {"enableServiceLinks": False}
    if worker.host_network:
        defaults["dnsPolicy"] = "ClusterFirstWithHostNet"
    policy = "OnFailure" if job.is_lone(worker.index) else "Never"
    return defaults | spec | {"restartPolicy": policy, "hostname": worker.host, "subdomain": job.name}


def service(job: JobView) -> Json:
    """Return the headless Service that gives workers their DNS names, also before they are ready."""
    named = {LABEL_JOB_UID: job.uid}
    if dns_names(job.spec) is DnsNames.MASTER:
        # Otherwise each change of a worker would rewrite the endpoint lists of all workers (docs/design/0007).
        named[LABEL_INDEX] = "0"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of_the_job(job, job.name),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": named},
    }


def network_policy(job: JobView, peers: Sequence[Json]) -> Json:
    """Return the policy of who may reach the workers, on any port: the workers, and `peers` as in a NetworkPolicy's
    `from`.

    torch's stores, gloo and NCCL accept any client as a member of the group.
    """
    workers: Json = {"podSelector": {"matchLabels": {LABEL_JOB_UID: job.uid}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata_of_the_job(job, job.name),
        "spec": {**workers, "policyTypes": ["Ingress"], "ingress": [{"from": [workers, *peers]}]},
    }


def compute_domain(job: JobView) -> Json:
    """Return the ComputeDomain of a job that wants one."""
    return compute_domain_of(job, metadata_of_the_job(job, job.name))


def metadata_of_the_job(job: JobView, name: str) -> Json:
    """Return the metadata of an object that the job owns, and that is deleted with it."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": {LABEL_JOB_NAME: job.name, LABEL_JOB_UID: job.uid},
        "ownerReferences": [_owner(job)],
    }


def _labels(worker: Worker) -> dict[str, str]:
    return {
        LABEL_JOB_NAME: worker.job.name,
        LABEL_JOB_UID: worker.job.uid,
        LABEL_ROLE: worker.role,
        LABEL_INDEX: str(worker.number),
        LABEL_ATTEMPT: str(worker.attempt),
    }


def _annotations(worker: Worker) -> dict[str, str]:
    return {
        ANNOTATION_WORKERS: str(worker.workers),
        ANNOTATION_MAIN_CONTAINER: worker.spec.template["spec"]["containers"][0]["name"],
        ANNOTATION_GENERATION: str(worker.job.generation),
        ANNOTATION_TEMPLATE_HASH: worker.job.template_hash,
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


def _with_environment(worker: Worker, spec: Json) -> Json:
    """Return the spec with the environment of each container, and termination messages taken from logs by default."""

    def completed(container: Json, *, tuned: bool) -> Json:
        with_env = {**container, "env": environment(worker, container, tuned=tuned)}
        return {"terminationMessagePolicy": "FallbackToLogsOnError"} | with_env

    changes: Json = {"containers": [completed(c, tuned=True) for c in spec["containers"]]}
    if spec.get("initContainers"):
        changes["initContainers"] = [completed(c, tuned=False) for c in spec["initContainers"]]
    return {**spec, **changes}


def _with_shared_memory(spec: Json) -> Json:
    """Return the spec with a memory volume at /dev/shm for each container without a volume there.

    The runtime's 64 MiB are too small for data loaders and NCCL. No size limit: the kubelet then bounds it by the pod's
    memory limit, against which it counts.
    """
    volumes: list[Json] = spec.get("volumes") or []
    # With `hostIPC` the pod has the node's own /dev/shm.
    if spec.get("hostIPC") or any(volume["name"] == SHM_VOLUME for volume in volumes):
        return spec
    mount: Json = {"name": SHM_VOLUME, "mountPath": SHM}
    containers = [
        c if _mounts_shared_memory(c) else {**c, "volumeMounts": [*(c.get("volumeMounts") or []), mount]}
        for c in spec["containers"]
    ]
    if containers == spec["containers"]:
        return spec
    return {
        **spec,
        "containers": containers,
        "volumes": [*volumes, {"name": SHM_VOLUME, "emptyDir": {"medium": "Memory"}}],
    }


def _mounts_shared_memory(container: Json) -> bool:
    return any(mount["mountPath"].rstrip("/") == SHM for mount in container.get("volumeMounts") or [])


def _with_node_affinity(worker: Worker, spec: Json) -> Json:
    if spec.get("nodeName"):
        return spec
    elastic = worker.spec.elastic
    if elastic and elastic.on_demand_replicas is not None and is_worker(worker.index):
        spec = require_on_demand(spec) if worker.index < elastic.on_demand_replicas else prefer_spot(spec)
    return avoid_suspect_nodes(spec, worker.job.status.suspect_nodes)


def _tolerations(spec: Json) -> list[Json]:
    # A toleration without an effect matches all effects, and one without a key matches every taint.
    own = [t for t in spec.get("tolerations") or [] if t.get("effect") in {None, "", "NoExecute"}]
    keys = {t.get("key") or "" for t in own}
    return [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": UNREACHABLE_SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        if keys.isdisjoint({key, ""})
    ]
