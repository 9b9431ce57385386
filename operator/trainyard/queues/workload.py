"""The manifest of a job's Workload, Kueue's object by which a job waits for quota. Pure.

A Workload has the pods as they will be, reduced to what quota and placement depend on: images, variables and volumes are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from trainyard.api.constants import (
    ANNOTATION_TEMPLATE_HASH,
    GROUP,
    KIND,
    LABEL_ATTEMPT,
    LABEL_INDEX,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    VERSION,
)
from trainyard.api.internal_status import PodGroup
from trainyard.api.roles import member_index
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.workload import FINALIZER
from trainyard.domain.workload_changes import PodSet
from trainyard.frameworks.worker_spec import Json, Worker

KUEUE = "kueue.x-k8s.io"
API_VERSION = f"{KUEUE}/v1beta2"
LABEL_KUEUE_JOB_UID = f"{KUEUE}/job-uid"
PREFIX = "trainingjob-"
MAX_NAME = 63
HASH_CHARACTERS = 5
TOPOLOGY_ANNOTATIONS = f"{KUEUE}/podset-"
"""The annotations of a pod template by which a user asks Kueue for nodes near each other."""
OF_POD = (
    *("nodeSelector", "affinity", "tolerations", "priorityClassName", "runtimeClassName", "schedulerName"),
    *("resourceClaims", "overhead", "resources", "hostNetwork"),
)
OF_CONTAINER = ("name", "image", "resources", "restartPolicy")
"""The fields of pods and containers on which quota and placement depend."""
OF_ONE_POD = frozenset({LABEL_INDEX, LABEL_ATTEMPT})
"""Labels in which the pods of a role differ. The others stay: an affinity between the pods names them."""


@dataclass(frozen=True, slots=True)
class Priority:
    """The priority of a Workload, and the class that it comes from."""

    value: int = 0
    group: str = ""
    """Empty: no class."""
    kind: str = ""
    name: str = ""


def workload_name(job: JobView) -> str:
    """Return the name of the job's Workload. A later job of the same name has another UID, and so another name."""
    stem = f"{PREFIX}{job.name}"[: MAX_NAME - HASH_CHARACTERS - 1].rstrip("-")
    return f"{stem}-{sha256(job.uid.encode()).hexdigest()[:HASH_CHARACTERS]}"


def as_new(job: JobView, gang: PodGroup | None) -> JobView:
    """Return the job as in its first attempt. What an attempt has learned does not count: it passes.

    `gang`: the PodGroup that its pods will have, if any.
    """
    first = gang.evolve(created_in_attempt=1) if gang else None
    return replace(job, status=TrainingJobStatus().evolve(pod_group=first))


def members_of(job: JobView, pod_sets: Sequence[PodSet]) -> Sequence[Worker]:
    """Return the first member of each role, whose pod stands for all. `job`: as in its first attempt."""
    indexes = [member_index(each.role, 0) for each in pod_sets]
    return [Worker(job.of_member(i), i, 1, pod_sets[0].count) for i in indexes]


def workload(job: JobView, pod_sets: Sequence[PodSet], pods: Sequence[Json], priority: Priority) -> Json:
    """Return the Workload. `pods`: the manifests of the pods that stand for the roles, in the order of `pod_sets`."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": {
            "name": workload_name(job),
            "namespace": job.namespace,
            "labels": {LABEL_JOB_NAME: job.name, LABEL_JOB_UID: job.uid, LABEL_KUEUE_JOB_UID: job.uid},
            "annotations": {
                **(job.queue.annotations if job.queue else {}),
                ANNOTATION_TEMPLATE_HASH: job.template_hash,
            },
            "finalizers": [FINALIZER],
            "ownerReferences": [
                {
                    "apiVersion": f"{GROUP}/{VERSION}",
                    "kind": KIND,
                    "name": job.name,
                    "uid": job.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": _spec(job, pod_sets, pods, priority),
    }


def _spec(job: JobView, pod_sets: Sequence[PodSet], pods: Sequence[Json], priority: Priority) -> Json:
    request = job.queue
    spec: Json = {
        "queueName": request.queue if request else "",
        "active": True,
        "podSets": [_pod_set(each, pod) for each, pod in zip(pod_sets, pods, strict=True)],
        "priority": priority.value,
    }
    if priority.name:
        spec["priorityClassRef"] = {"group": priority.group, "kind": priority.kind, "name": priority.name}
    if request and request.max_execution_seconds:
        spec["maximumExecutionTimeSeconds"] = request.max_execution_seconds
    return spec


def _pod_set(asked: PodSet, pod: Json) -> Json:
    fewest = {} if asked.min_count is None else {"minCount": asked.min_count}
    return {"name": asked.role, "count": asked.count, **fewest, "template": _template(pod)}


def _template(pod: Json) -> Json:
    spec, metadata = pod["spec"], pod["metadata"]
    reduced: Json = {name: spec[name] for name in OF_POD if name in spec}
    reduced["containers"] = [_container(each) for each in spec["containers"]]
    if spec.get("initContainers"):
        reduced["initContainers"] = [_container(each) for each in spec["initContainers"]]
    reduced["restartPolicy"] = "Never"
    labels = {name: value for name, value in metadata["labels"].items() if name not in OF_ONE_POD}
    asked = {k: v for k, v in metadata["annotations"].items() if k.startswith(TOPOLOGY_ANNOTATIONS)}
    return {"metadata": {"labels": labels, **({"annotations": asked} if asked else {})}, "spec": reduced}


def _container(container: Mapping[str, object]) -> Json:
    return {name: container[name] for name in OF_CONTAINER if name in container}
