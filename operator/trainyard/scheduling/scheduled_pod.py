"""What `spec.scheduling` adds to the pod of a member: its PodGroup, scheduler, priority and topology. The user's fields win. Pure."""

from collections.abc import Sequence
from typing import Any, Final, assert_never

from trainyard.api.constants import LABEL_GROUP, LABEL_JOB_UID
from trainyard.api.scheduling import Gang, GangScheduler, Topology
from trainyard.domain.state.gang_schedulers import (
    COSCHEDULING_GROUP,
    VOLCANO_GROUP,
    GangSchedulers,
    own_group,
)
from trainyard.domain.state.snapshot import JobView
from trainyard.scheduling.pod_group import pod_group_name

Json = dict[str, Any]
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
TOPOLOGY_WEIGHT: Final = 100
"""The maximum weight of a preference."""


def placed(job: JobView, pod: Json, workers: int, schedulers: GangSchedulers) -> Json:
    """Return the manifest of a member's pod with all of this. `workers`: the size of its group."""
    scheduling, group, spec = job.spec.scheduling, job.status.pod_group, pod["spec"]
    if scheduling.priority_class_name:
        spec = {"priorityClassName": scheduling.priority_class_name} | spec
    if group and (name := schedulers.name_of(group.scheduler)):
        spec = {"schedulerName": name} | spec
    pod = {**pod, "spec": spec}
    if scheduling.topology:
        pod = _near_the_others(job, pod, scheduling.topology)
    # A group that has become smaller than its gang would wait for it: its new pods are placed by themselves.
    if group and len(job.members(workers)) >= group.min_member:
        pod = _in_gang(pod, group.scheduler, pod_group_name(job, group))
    return pod


def kept_fields(job: JobView, schedulers: GangSchedulers) -> Sequence[str]:
    """Return what the job's template keeps beside `scheduling`, and what that means, as sentences. `job`: as one role sees it."""
    scheduling, template, group = job.spec.scheduling, job.spec.template, job.status.pod_group
    spec, notes = template["spec"], list[str]()
    asks = scheduling.gang is not Gang.NONE and (scheduling.gang is not Gang.AUTO or schedulers.permitted)
    if asks and (own := own_group(template)):
        fields = "scheduling.gang and scheduling.queue" if job.volcano_queue else "scheduling.gang"
        notes.append(f"the template has {own}: the operator creates no PodGroup; remove it to use {fields}")
    name = spec.get("schedulerName")
    if group and not schedulers.serves(group.scheduler, template):
        notes.append(
            f"the template has schedulerName {name}, which may not be the scheduler of scheduling.gang ({group.scheduler})"
            ": remove it, unless it reads the PodGroup"
        )
    wanted, given = scheduling.priority_class_name, spec.get("priorityClassName")
    if wanted and given and wanted != given:
        notes.append(
            f"a role has priorityClassName {given}, and scheduling.priorityClassName is {wanted}"
            ": a gang needs one priority; remove one of them"
        )
    if scheduling.topology and _has_own_topology(spec, scheduling.topology):
        notes.append(
            f"the template has a podAffinity with topologyKey {scheduling.topology.key}: it replaces scheduling.topology"
        )
    return notes


def _in_gang(pod: Json, scheduler: GangScheduler, name: str) -> Json:
    metadata = pod["metadata"]
    match scheduler:
        case GangScheduler.NATIVE:
            return {**pod, "spec": {"schedulingGroup": {"podGroupName": name}} | pod["spec"]}
        case GangScheduler.VOLCANO:
            annotations = {VOLCANO_GROUP: name} | metadata.get("annotations", {})
            return {**pod, "metadata": {**metadata, "annotations": annotations}}
        case GangScheduler.COSCHEDULING:
            labels = {COSCHEDULING_GROUP: name} | metadata.get("labels", {})
            return {**pod, "metadata": {**metadata, "labels": labels}}
        case _:
            assert_never(scheduler)


def _near_the_others(job: JobView, pod: Json, topology: Topology) -> Json:
    """Return the pod with an affinity to its own group. Kubernetes admits the first pod of a group, since it matches its own term.

    Pods of an earlier group do not count: one on a lost node would bind the new group to that node's domain.
    """
    if _has_own_topology(pod["spec"], topology):
        return pod
    group = {LABEL_JOB_UID: job.uid, LABEL_GROUP: str(job.status.group_attempt)}
    term: Json = {"topologyKey": topology.key, "labelSelector": {"matchLabels": group}}
    kind, entry = (
        (REQUIRED, term) if topology.required else (PREFERRED, {"weight": TOPOLOGY_WEIGHT, "podAffinityTerm": term})
    )
    affinity: Json = pod["spec"].get("affinity") or {}
    of_pods: Json = affinity.get("podAffinity") or {}
    of_pods = {**of_pods, kind: [*(of_pods.get(kind) or []), entry]}
    labels = {**pod["metadata"].get("labels", {}), LABEL_GROUP: group[LABEL_GROUP]}
    spec = {**pod["spec"], "affinity": {**affinity, "podAffinity": of_pods}}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": spec}


def _has_own_topology(spec: Json, topology: Topology) -> bool:
    """Return whether the user's own pod affinity has this key."""
    of_pods: Json = (spec.get("affinity") or {}).get("podAffinity") or {}
    preferred = (each["podAffinityTerm"] for each in of_pods.get(PREFERRED) or [])
    return any(term.get("topologyKey") == topology.key for term in (*(of_pods.get(REQUIRED) or []), *preferred))
