"""Convert the JSON of the API server to the views that decisions use.

The schema of the API server is trusted, the content is not: a pod without a worker's name raises ValueError and is ignored.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from sys import intern
from typing import Any

from trainyard.api.constants import (
    ANNOTATION_GENERATION,
    ANNOTATION_MAIN_CONTAINER,
    ANNOTATION_TEMPLATE_HASH,
    ANNOTATION_WORKERS,
    ENV_JOB_UID,
    LABEL_JOB_UID,
)
from trainyard.api.recovery import PEER_LOST_CODE, RESTART_CODE, SAVED_CODE
from trainyard.api.spec import MAX_GRACE_SECONDS, TrainingJobSpec
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state.accelerators import ACCELERATORS, AcceleratorTable, count_processes
from trainyard.domain.state.object_names import parse_worker_pod
from trainyard.domain.state.snapshot import STOP_DEADLINE_SECONDS, UNSCHEDULABLE, JobView, PodIssue, PodView
from trainyard.domain.state.termination import Exit, Kind, headline, read

Json = Mapping[str, Any]

FAR_AWAY = datetime.max.replace(tzinfo=UTC)
MESSAGE_LIMIT = 2048
STARTING_REASONS = frozenset({"ContainerCreating", "PodInitializing"})
"""The reasons for which a healthy container waits."""
DEFAULT_CONDITIONS = frozenset({"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"})
"""The conditions of every healthy pod."""
NO_CONDITIONS: frozenset[str] = frozenset()
"""Shared by all pods, to save memory."""
LOST_CONTAINER_REASONS = frozenset({"ContainerStatusUnknown", "Unknown"})
"""The reasons of the kubelet and of containerd for a container that was lost, for example at a reboot: its exit code is invented."""
CONTAINERS_NOT_READY = "ContainersNotReady"
"""The reason of the kubelet for a pod that is not ready because of its containers."""
EVICTED = "Evicted"
"""The reason of the kubelet for a pod that it terminates, or does not admit, because a resource is short."""
UNCHARGED_CODES = frozenset({0, SAVED_CODE, PEER_LOST_CODE})
"""Exit codes that do not count against the restart budget."""
SIGKILL_CODE = 128 + 9


def job_view(raw: Json, accelerators: AcceleratorTable = ACCELERATORS) -> JobView:
    """Return a TrainingJob, its `processesPerReplica` as a number. Raises pydantic.ValidationError where spec or status is invalid."""
    metadata = raw["metadata"]
    spec = TrainingJobSpec.model_validate(raw["spec"])
    status = TrainingJobStatus.model_validate(raw.get("status") or {})
    auto = None
    if spec.processes_per_replica == "auto":
        # While a job is suspended, it has no group that another table could change.
        auto = count_processes(spec, accelerators, None if status.suspended else status.internal.counted_processes)
        spec = spec.evolve(processes_per_replica=auto.processes)
    return JobView(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        generation=metadata["generation"],
        resource_version=int(metadata["resourceVersion"]),
        spec=spec,
        status=status,
        deleting="deletionTimestamp" in metadata,
        auto_processes=auto,
    )


def pod_view(raw: Json) -> PodView:
    """Return a worker's pod. Raises KeyError or ValueError where the object is none.

    Index and attempt come from the name, which cannot be edited; the labels of the same meaning are for selectors.
    """
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    index, attempt = parse_worker_pod(metadata["name"])
    annotations = metadata.get("annotations") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    observed, restartable = _main_status(raw), is_restartable(raw)
    main: Json = observed.get("state") or {}
    will_restart = restartable and _will_restart(main, status)
    main = {} if will_restart else main
    end = _exit(main, spec, status)
    end = _evicted(status, conditions, main, end) or end
    init, init_since = _running_init(spec, status)
    disrupted_at, disruption = _disruption(metadata, status, conditions, main, end)
    return PodView(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        resource_version=int(metadata["resourceVersion"]),
        job_uid=metadata["labels"][LABEL_JOB_UID],
        attempt=attempt,
        index=index,
        workers=_number(annotations.get(ANNOTATION_WORKERS)),
        phase=status.get("phase", "Pending"),
        node=spec.get("nodeName"),
        ip=status.get("podIP") or "",
        scheduled="nodeName" in spec,
        ready=_is_ready(conditions, observed),
        running="running" in main,
        running_since=_time(main["running"].get("startedAt")) if "running" in main else None,
        ended=not will_restart and _ended(spec, status),
        exit=end,
        conditions=frozenset(kind for kind, c in conditions.items() if c.get("status") == "True") - DEFAULT_CONDITIONS
        or NO_CONDITIONS,
        issue=_issue(status, conditions),
        disrupted_at=disrupted_at,
        disruption=disruption,
        deletion_time=_time(metadata.get("deletionTimestamp")),
        stop_requested=spec.get("activeDeadlineSeconds") == STOP_DEADLINE_SECONDS,
        clock_behind=_clock_behind(status, conditions),
        removed="deletionTimestamp" in metadata and metadata.get("deletionGracePeriodSeconds") == 0,
        restartable=restartable,
        generation=_number(annotations.get(ANNOTATION_GENERATION)),
        template_hash=intern(annotations.get(ANNOTATION_TEMPLATE_HASH) or ""),
        node_lost_at=_node_lost_at(conditions),
        init_container=init,
        init_since=init_since,
    )


def owner(raw: Json) -> Json | None:
    """Return the reference to the object that controls this one; None where there is none."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller")), None)


def owner_uid(raw: Json) -> str | None:
    """Return the UID of the object that controls this one; None where there is none."""
    found = owner(raw)
    return found["uid"] if found else None


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        # The API server accepts times that Python cannot represent, for example after a grace period of ten thousand years.
        return FAR_AWAY


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 10 else 0


def main_container(pod: Json) -> Json:
    """Return the main container of a worker's pod, by the name that the operator wrote into the pod.

    Admission may put containers before it. A pod without a valid name has it as the first of the template's containers: only
    these have the operator's variables. Pods of earlier releases have no name.
    """
    containers: Sequence[Json] = pod["spec"]["containers"]
    name = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_MAIN_CONTAINER)
    of_template = (c for c in containers if any(v["name"] == ENV_JOB_UID for v in c.get("env") or ()))
    named = next((c for c in containers if c["name"] == name), None)
    return named or next(of_template, containers[0])


def _main_status(pod: Json) -> Json:
    name = main_container(pod)["name"]
    statuses: Sequence[Json] = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((s for s in statuses if s["name"] == name), {})


def is_restartable(pod: Json) -> bool:
    """Return whether the node of this pod restarts a main container that exits with RESTART_CODE."""
    rules = main_container(pod).get("restartPolicyRules") or ()
    codes = [rule.get("exitCodes") or {} for rule in rules]
    return any(each.get("operator") == "In" and RESTART_CODE in each.get("values", ()) for each in codes)


def _is_ready(conditions: Mapping[str, Json], main: Json) -> bool:
    """Return whether the worker is ready: its pod, or its main container where another container is what is not ready."""
    ready = conditions.get("Ready", {})
    return ready.get("status") == "True" or (ready.get("reason") == CONTAINERS_NOT_READY and main.get("ready") is True)


def _will_restart(main: Json, status: Json) -> bool:
    """Return whether the main container has exited to be restarted. A node without that feature lets the pod fail."""
    ended = (main.get("terminated") or {}).get("exitCode")
    return ended == RESTART_CODE and status.get("phase") not in {"Succeeded", "Failed"}


def _ended(spec: Json, status: Json) -> bool:
    if status.get("phase") in {"Succeeded", "Failed"}:
        return True
    states = [s.get("state") or {} for s in status.get("containerStatuses") or ()]
    return len(states) == len(spec["containers"]) and all("terminated" in state for state in states)


def _exit(main: Json, spec: Json, status: Json) -> Exit | None:
    """Return the main container's exit; else that of an init container whose failure keeps it from starting."""
    if end := _reported_exit(main):
        return end
    if status.get("phase") != "Failed":
        return None
    # A sidecar is terminated with the pod; it is never why the pod failed.
    sidecars = {c["name"] for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    inits = (s for s in status.get("initContainerStatuses") or () if s["name"] not in sidecars)
    ends = (_reported_exit(s.get("state") or {}, s["name"]) for s in inits)
    return next((e for e in ends if e and e.code != 0), None)


def _running_init(spec: Json, status: Json) -> tuple[str, datetime | None]:
    """Return the init container that runs, and since when. Others wait for a sidecar until it has started."""
    if status.get("phase") != "Pending":
        return "", None
    sidecars = {c["name"] for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    for init in status.get("initContainerStatuses") or ():
        running = (init.get("state") or {}).get("running")
        if running is not None and not (init["name"] in sidecars and init.get("started")):
            return init["name"], _time(running.get("startedAt"))
    return "", None


def _reported_exit(state: Json, init_container: str | None = None) -> Exit | None:
    ended: Json = state.get("terminated") or {}
    finished = _time(ended.get("finishedAt"))
    if finished is None or ended.get("reason") in LOST_CONTAINER_REASONS:
        return None
    reason = ended.get("reason") or "Error"
    return container_exit(finished, ended["exitCode"], ended.get("message") or "", reason, init_container)


def container_exit(
    time: datetime, code: int, termination_message: str, reason: str = "Error", init_container: str | None = None
) -> Exit:
    """Return the exit of a container or of its ranks, from its termination message."""
    message = read(termination_message)
    data, text = message.data, message.text
    if data is None:
        return Exit(time, code, reason, text[-MESSAGE_LIMIT:], init_container)
    line, raised = headline(data, text), data.kind in {Kind.FAILED, Kind.HIDDEN}
    rest = "" if text.startswith(line) and len(text) <= MESSAGE_LIMIT else f"{line}\n"
    length = MESSAGE_LIMIT - len(rest)
    return Exit(
        time,
        code,
        "OOMKilled" if data.out_of_memory else reason,
        (rest + text[-length:]).strip(),
        init_container,
        data.step,
        data.rank,
        kind=data.kind,
        headline=line,
        location=data.location if raised else "",
        exception=data.exception.partition(":")[0] if raised else "",
        cause=data.cause if raised else "",
        peer_lost=data.peer_lost,
        hardware_error=data.hardware_error,
    )


def _evicted(status: Json, conditions: Mapping[str, Json], main: Json, end: Exit | None) -> Exit | None:
    """Return the exit of a pod that was evicted for its own use of resources: a full volume, or too much of its node's disk.

    The kubelet marks all other pods that it terminates with DisruptionTarget; a pod that it does not admit has no containers.
    """
    disrupted = conditions.get("DisruptionTarget", {}).get("status") == "True"
    ran = end is not None or "terminated" in main
    if (status.get("phase"), status.get("reason")) != ("Failed", EVICTED) or disrupted or not ran:
        return None
    words = (status.get("message") or "").strip()[-MESSAGE_LIMIT:]
    if end:
        # The node's reason replaces what the agent reported, but for the rank and its step.
        code = SIGKILL_CODE if end.code in UNCHARGED_CODES else end.code
        return Exit(end.time, code, EVICTED, words, end.init_container, end.step, end.rank)
    over = _time(conditions.get("Ready", {}).get("lastTransitionTime"))
    return Exit(over, SIGKILL_CODE, EVICTED, words) if over else None


def _disruption(
    metadata: Json, status: Json, conditions: Mapping[str, Json], main: Json, end: Exit | None
) -> tuple[datetime | None, PodIssue | None]:
    """Return when the pod was disrupted (None: not known), and by what.

    A deletion counts from the request, not from the end of the grace period.
    """
    target = conditions.get("DisruptionTarget", {})
    disrupted = _time(target.get("lastTransitionTime")) if target.get("status") == "True" else None
    deletion = _time(metadata.get("deletionTimestamp"))
    grace = min(metadata.get("deletionGracePeriodSeconds") or 0, MAX_GRACE_SECONDS)
    deleted = deletion - timedelta(seconds=grace) if deletion else None
    if disrupted and not (deleted and deleted < disrupted):
        return disrupted, PodIssue(target.get("reason", "DisruptionTarget"), target.get("message", ""))
    if deleted:
        return deleted, PodIssue("Deleted", "the pod was deleted")
    # A reason of the whole pod, not of a container, means that its node terminated it, for example at a shutdown.
    if end and end.reason != EVICTED and status.get("phase") == "Failed" and status.get("reason"):
        return None, PodIssue(status["reason"], status.get("message", ""))
    if not end and not status.get("reason") and "terminated" in main:
        return None, PodIssue("ContainerStatusUnknown", "the node lost the container, for example at a reboot")
    return None, None


def _clock_behind(status: Json, conditions: Mapping[str, Json]) -> bool:
    """Return whether the node started the pod, by its own clock, before the pod was scheduled, by the API server's."""
    scheduled = conditions.get("PodScheduled", {})
    scheduled_at = _time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
    started = _time(status.get("startTime"))
    return scheduled_at is not None and started is not None and started < scheduled_at


def _node_lost_at(conditions: Mapping[str, Json]) -> datetime | None:
    """Return when the pod was given up with its node, as far as the pod shows it: no permission to read nodes is needed.

    The taint manager deletes it, which it does for any NoExecute taint. The node controller makes Ready False and leaves
    ContainersReady, which a kubelet does only for a readiness gate, and then with a reason. The next update of the kubelet makes it
    consistent again.
    """
    ready, containers = conditions.get("Ready", {}), conditions.get("ContainersReady", {})
    silent = ready.get("status") == "False" and containers.get("status") == "True" and not ready.get("reason")
    target = conditions.get("DisruptionTarget", {})
    given_up = target.get("status") == "True" and target.get("reason") == "DeletionByTaintManager"
    return _time(target.get("lastTransitionTime")) if silent and given_up else None


def _subject(container: Json) -> str:
    return f"container {container['name']}, image {container['image']}" if container.get("image") else ""


def _issue(status: Json, conditions: Mapping[str, Json]) -> PodIssue | None:
    if status.get("phase") == "Failed":
        return PodIssue(status["reason"], status.get("message", "")) if status.get("reason") else None
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return PodIssue(scheduled.get("reason", UNSCHEDULABLE), scheduled.get("message", ""))
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "ContainerCreating") not in STARTING_REASONS:
            return PodIssue(waiting["reason"], waiting.get("message", ""), _subject(container))
    return None
