"""The `spec` of a PodGroup, by which a scheduler places the pods of a group all or none. Pure."""

from typing import Any, assert_never

from trainyard.api.internal_status import PodGroup
from trainyard.api.scheduling import GangScheduler
from trainyard.domain.state.pod_requests import pod_requests, total
from trainyard.domain.state.snapshot import JobView

Json = dict[str, Any]


def pod_group_name(job: JobView, group: PodGroup) -> str:
    """Return the name. A new group of pods gets another one: most fields of a PodGroup cannot change."""
    return f"{job.name}-{group.created_in_attempt}"


def pod_group_spec(job: JobView, group: PodGroup) -> Json:
    """Return the `spec` of the PodGroup in the API of its scheduler."""
    scheduling = job.spec.scheduling
    match group.scheduler:
        case GangScheduler.NATIVE:
            # These fields are the same in v1alpha2 (Kubernetes 1.36) and v1beta1 (1.37).
            spec: Json = {"schedulingPolicy": {"gang": {"minCount": group.min_member}}, **_priority(job)}
            if scheduling.topology and scheduling.topology.required:
                spec["schedulingConstraints"] = {"topology": [{"key": scheduling.topology.key}]}
            return spec
        case GangScheduler.VOLCANO:
            queue: Json = {"queue": group.queue} if group.queue else {}
            return {"minMember": group.min_member, **queue, **_priority(job), "minResources": _requests(job, group)}
        case GangScheduler.COSCHEDULING:
            return {"minMember": group.min_member}
        case _:
            assert_never(group.scheduler)


def _priority(job: JobView) -> Json:
    """Return the PriorityClass of the workers: that of a group and of its pods must be the same."""
    return {"priorityClassName": job.priority_class} if job.priority_class else {}


def _requests(job: JobView, group: PodGroup) -> Json:
    """Return what the smallest gang requests: all members of roles, and as many workers as are left of it."""
    roles = job.role_members
    members = [*([0] * max(0, group.min_member - len(roles))), *roles]
    return total((1, pod_requests(job.of_member(index).spec.template["spec"])) for index in members)
