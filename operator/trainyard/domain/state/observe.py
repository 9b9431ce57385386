"""From the JSON of the API server to the views that decisions look at.

Trusts the API server's schema, not the content: a pod that does not bear a worker's name raises ValueError and is left out.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard.api.constants import ANNOTATION_WORKERS, LABEL_JOB_UID
from trainyard.api.recovery import PEER_LOST_CODE, RESTART_CODE, SAVED_CODE
from trainyard.api.spec import LONGEST_GRACE, TrainingJobSpec
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.object_names import parse_worker_pod
from trainyard.domain.state.snapshot import UNSCHEDULABLE, Exit, JobView, PodView, Trouble
from trainyard.domain.state.termination import Kind, headline, read

Json = Mapping[str, Any]

FAR_AWAY = datetime.max.replace(tzinfo=UTC)
MESSAGE_LIMIT = 2048
ON_ITS_WAY = frozenset({"ContainerCreating", "PodInitializing"})
"""What a container waits for where all is well."""
USUAL = frozenset({"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"})
"""The conditions of a pod that is well."""
NOTHING: frozenset[str] = frozenset()
"""One for all pods."""
UNSEEN = frozenset({"ContainerStatusUnknown", "Unknown"})
"""The kubelet's and containerd's words for a container that was lost, at a reboot say: its exit code is made up."""
EVICTED = "Evicted"
"""The kubelet's word for a pod that it ends, and for one that it does not let begin, where something runs short."""
IN_ORDER = frozenset({0, SAVED_CODE, PEER_LOST_CODE})
"""Exit codes that nobody is charged for."""
KILLED = 128 + 9


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
    """A worker's pod. Raises KeyError or ValueError where it is none.

    Index and attempt are read from the name, which nobody can edit; the labels of the same meaning are for selectors.
    """
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    index, attempt = parse_worker_pod(metadata["name"])
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    main, restartable = _main_container(spec, status), is_restartable(spec)
    comes_back = restartable and _comes_back(main, status)
    main = {} if comes_back else main
    end = _exit(main, spec, status)
    end = _evicted(status, conditions, main, end) or end
    taken_at, taken_by = _taken(metadata, status, conditions, main, end)
    return PodView(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        resource_version=int(metadata["resourceVersion"]),
        job_uid=metadata["labels"][LABEL_JOB_UID],
        attempt=attempt,
        index=index,
        workers=_number((metadata.get("annotations") or {}).get(ANNOTATION_WORKERS)),
        phase=status.get("phase", "Pending"),
        node=spec.get("nodeName"),
        ip=status.get("podIP") or "",
        scheduled="nodeName" in spec,
        ready=conditions.get("Ready", {}).get("status") == "True",
        running="running" in main,
        running_since=_time(main["running"].get("startedAt")) if "running" in main else None,
        ended=not comes_back and _ended(spec, status),
        exit=end,
        conditions=frozenset(kind for kind, c in conditions.items() if c.get("status") == "True") - USUAL or NOTHING,
        trouble=_trouble(status, conditions),
        taken_at=taken_at,
        taken_by=taken_by,
        deletion_time=_time(metadata.get("deletionTimestamp")),
        clock_behind=_clock_behind(status, conditions),
        removed="deletionTimestamp" in metadata and metadata.get("deletionGracePeriodSeconds") == 0,
        restartable=restartable,
        node_lost_at=_node_lost_at(conditions),
    )


def owner_uid(raw: Json) -> str | None:
    """The UID of the object that controls this one."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        # A grace period of ten thousand years, say: the API server can write times that Python cannot read.
        return FAR_AWAY


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 10 else 0


def _main_container(spec: Json, status: Json) -> Json:
    name = spec["containers"][0]["name"]
    statuses: Sequence[Json] = status.get("containerStatuses") or ()
    state: Json = next((s.get("state") or {} for s in statuses if s["name"] == name), {})
    return state


def is_restartable(spec: Json) -> bool:
    """Whether the node of a pod with this `spec` starts the main container anew where it ends with RESTART_CODE."""
    rules = spec["containers"][0].get("restartPolicyRules") or ()
    codes = [rule.get("exitCodes") or {} for rule in rules]
    return any(each.get("operator") == "In" and RESTART_CODE in each.get("values", ()) for each in codes)


def _comes_back(main: Json, status: Json) -> bool:
    """Whether the main container has ended to start anew. A node that knows nothing of it lets the pod fail."""
    ended = (main.get("terminated") or {}).get("exitCode")
    return ended == RESTART_CODE and status.get("phase") not in {"Succeeded", "Failed"}


def _ended(spec: Json, status: Json) -> bool:
    if status.get("phase") in {"Succeeded", "Failed"}:
        return True
    states = [s.get("state") or {} for s in status.get("containerStatuses") or ()]
    return len(states) == len(spec["containers"]) and all("terminated" in state for state in states)


def _exit(main: Json, spec: Json, status: Json) -> Exit | None:
    """The main container's end; else that of an init container whose failure keeps it from starting."""
    if end := _seen_end(main):
        return end
    if status.get("phase") != "Failed":
        return None
    # A sidecar is ended with the pod; that is never why the pod failed.
    sidecars = {c["name"] for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    inits = (s for s in status.get("initContainerStatuses") or () if s["name"] not in sidecars)
    ends = (_seen_end(s.get("state") or {}, s["name"]) for s in inits)
    return next((e for e in ends if e and e.code != 0), None)


def _seen_end(state: Json, init_container: str | None = None) -> Exit | None:
    ended: Json = state.get("terminated") or {}
    finished = _time(ended.get("finishedAt"))
    if finished is None or ended.get("reason") in UNSEEN:
        return None
    reason = ended.get("reason") or "Error"
    return an_exit(finished, ended["exitCode"], ended.get("message") or "", reason, init_container)


def an_exit(time: datetime, code: int, said: str, reason: str = "Error", init_container: str | None = None) -> Exit:
    """Return the exit of a container or of its ranks, from its termination message."""
    message = read(said)
    data, text = message.data, message.text
    if data is None:
        return Exit(time, code, reason, text[-MESSAGE_LIMIT:], init_container)
    line = headline(data, text)
    rest = "" if text.startswith(line) and len(text) <= MESSAGE_LIMIT else f"{line}\n"
    room = MESSAGE_LIMIT - len(rest)
    return Exit(
        time,
        code,
        "OOMKilled" if data.out_of_memory else reason,
        (rest + text[-room:]).strip(),
        init_container,
        data.step,
        data.rank,
        kind=data.kind,
        headline=line,
        location=data.location if data.kind is Kind.FAILED else "",
        peer_lost=data.peer_lost,
        hardware_error=data.hardware_error,
    )


def _evicted(status: Json, conditions: Mapping[str, Json], main: Json, end: Exit | None) -> Exit | None:
    """The end of a pod that was evicted for its own doing: it filled a volume, or used more of its node's disk than it may.

    The kubelet marks all other pods that it ends with DisruptionTarget, and those that it does not let begin have no containers.
    """
    disrupted = conditions.get("DisruptionTarget", {}).get("status") == "True"
    ran = end is not None or "terminated" in main
    if (status.get("phase"), status.get("reason")) != ("Failed", EVICTED) or disrupted or not ran:
        return None
    words = (status.get("message") or "").strip()[-MESSAGE_LIMIT:]
    if end:
        # The node's reason replaces what the agent reported, but for the rank and its step.
        code = KILLED if end.code in IN_ORDER else end.code
        return Exit(end.time, code, EVICTED, words, end.init_container, end.step, end.rank)
    over = _time(conditions.get("Ready", {}).get("lastTransitionTime"))
    return Exit(over, KILLED, EVICTED, words) if over else None


def _taken(
    metadata: Json, status: Json, conditions: Mapping[str, Json], main: Json, end: Exit | None
) -> tuple[datetime | None, Trouble | None]:
    """When the pod was asked to go (None: not known), and by whom.

    Deletion counts from the request, not from the end of the grace period.
    """
    target = conditions.get("DisruptionTarget", {})
    disrupted = _time(target.get("lastTransitionTime")) if target.get("status") == "True" else None
    deletion = _time(metadata.get("deletionTimestamp"))
    grace = min(metadata.get("deletionGracePeriodSeconds") or 0, LONGEST_GRACE)
    deleted = deletion - timedelta(seconds=grace) if deletion else None
    if disrupted and not (deleted and deleted < disrupted):
        return disrupted, Trouble(target.get("reason", "DisruptionTarget"), target.get("message", ""))
    if deleted:
        return deleted, Trouble("Deleted", "somebody deleted the pod")
    # A reason of the whole pod, not of a container, means that its node ended it, at a shutdown say.
    if end and end.reason != EVICTED and status.get("phase") == "Failed" and status.get("reason"):
        return None, Trouble(status["reason"], status.get("message", ""))
    if not end and not status.get("reason") and "terminated" in main:
        return None, Trouble("ContainerStatusUnknown", "its node lost the container, at a restart say")
    return None, None


def _clock_behind(status: Json, conditions: Mapping[str, Json]) -> bool:
    """Whether the node has taken the pod up, by its own clock, before it was placed there, by the API server's."""
    scheduled = conditions.get("PodScheduled", {})
    placed = _time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
    taken_up = _time(status.get("startTime"))
    return placed is not None and taken_up is not None and taken_up < placed


def _node_lost_at(conditions: Mapping[str, Json]) -> datetime | None:
    """When the pod was given up with its node, as far as pods tell: no right to read nodes is needed.

    The taint manager deletes it, which it does for any NoExecute taint. The node controller makes Ready False and leaves
    ContainersReady, which a kubelet never does but for a readiness gate, and then with a reason; the first word of the kubelet
    makes it consistent again.
    """
    ready, containers = conditions.get("Ready", {}), conditions.get("ContainersReady", {})
    silent = ready.get("status") == "False" and containers.get("status") == "True" and not ready.get("reason")
    target = conditions.get("DisruptionTarget", {})
    given_up = target.get("status") == "True" and target.get("reason") == "DeletionByTaintManager"
    return _time(target.get("lastTransitionTime")) if silent and given_up else None


def _trouble(status: Json, conditions: Mapping[str, Json]) -> Trouble | None:
    if status.get("phase") == "Failed":
        return Trouble(status["reason"], status.get("message", "")) if status.get("reason") else None
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return Trouble(scheduled.get("reason", UNSCHEDULABLE), scheduled.get("message", ""))
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "ContainerCreating") not in ON_ITS_WAY:
            return Trouble(waiting["reason"], waiting.get("message", ""))
    return None
