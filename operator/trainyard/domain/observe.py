"""From the JSON of the API server to the views that decisions look at.

Trusts the API server's schema, not the content: a pod whose labels were edited by hand raises ValueError and is left out.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from trainyard.api.constants import ANNOTATION_WORKERS, LABEL_ATTEMPT, LABEL_INDEX, LABEL_JOB_UID
from trainyard.api.spec import TrainingJobSpec
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.model import Exit, JobView, PodView, Trouble
from trainyard.domain.worker import CONTAINER_TROUBLE, IMAGE_TROUBLE

Json = Mapping[str, Any]

MESSAGE_LIMIT = 2048


def job_view(raw: Json) -> JobView:
    """A TrainingJob. Raises pydantic.ValidationError where the spec or the status cannot be read."""
    metadata = raw["metadata"]
    return JobView(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        generation=metadata["generation"],
        resource_version=int(metadata["resourceVersion"]),
        spec=TrainingJobSpec.model_validate(raw["spec"]),
        status=TrainingJobStatus.model_validate(raw.get("status") or {}),
        deleting="deletionTimestamp" in metadata,
    )


def pod_view(raw: Json) -> PodView:
    """A worker's pod. Raises KeyError or ValueError where our labels are missing or not numbers."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    labels = metadata["labels"]
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    main = _main_container(spec, status)
    taken_at, taken_by = _taken(metadata, conditions)
    return PodView(
        uid=metadata["uid"],
        name=metadata["name"],
        resource_version=int(metadata["resourceVersion"]),
        job_uid=labels[LABEL_JOB_UID],
        attempt=int(labels[LABEL_ATTEMPT]),
        index=int(labels[LABEL_INDEX]),
        workers=int(metadata["annotations"][ANNOTATION_WORKERS]),
        phase=status.get("phase", "Pending"),
        node=spec.get("nodeName"),
        scheduled="nodeName" in spec,
        ready=conditions.get("Ready", {}).get("status") == "True",
        running="running" in main,
        exit=_exit(main, status),
        trouble=_trouble(status, conditions),
        taken_at=taken_at,
        taken_by=taken_by,
        deletion_time=_time(metadata.get("deletionTimestamp")),
    )


def owner_uid(raw: Json) -> str | None:
    """The UID of the object that controls this one."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _main_container(spec: Json, status: Json) -> Json:
    name = spec["containers"][0]["name"]
    statuses: Sequence[Json] = status.get("containerStatuses") or ()
    state: Json = next((s.get("state") or {} for s in statuses if s["name"] == name), {})
    return state


def _exit(main: Json, status: Json) -> Exit | None:
    """The main container's end; else that of an init container whose failure keeps it from starting."""
    ended = main.get("terminated")
    if not ended and status.get("phase") == "Failed":
        inits = (s.get("state", {}).get("terminated") for s in status.get("initContainerStatuses") or ())
        ended = next((t for t in inits if t and t["exitCode"] != 0), None)
    # A pod that was lost with its node has containers "terminated" at no time, with a code that nobody saw.
    if not ended or not (finished := _time(ended.get("finishedAt"))):
        return None
    return Exit(
        finished,
        ended["exitCode"],
        ended.get("reason") or "Error",
        (ended.get("message") or "").strip()[-MESSAGE_LIMIT:],
    )


def _taken(metadata: Json, conditions: Mapping[str, Json]) -> tuple[datetime | None, Trouble | None]:
    """When the pod was asked to go, and by whom. Deletion counts from the request, not from the end of the grace period."""
    target = conditions.get("DisruptionTarget", {})
    disrupted = _time(target.get("lastTransitionTime")) if target.get("status") == "True" else None
    deletion = _time(metadata.get("deletionTimestamp"))
    deleted = deletion - timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0) if deletion else None
    if disrupted and not (deleted and deleted < disrupted):
        return disrupted, Trouble(target.get("reason", "DisruptionTarget"), target.get("message", ""))
    return deleted, Trouble("Deleted", "somebody deleted the pod") if deleted else None


def _trouble(status: Json, conditions: Mapping[str, Json]) -> Trouble | None:
    if status.get("phase") == "Failed":
        return Trouble(status["reason"], status.get("message", "")) if status.get("reason") else None
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return Trouble(scheduled.get("reason", "Unschedulable"), scheduled.get("message", ""))
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in IMAGE_TROUBLE | CONTAINER_TROUBLE:
            return Trouble(waiting["reason"], waiting.get("message", ""))
    return None
