"""Convert the JSON of the API server to the views that decisions use.

The schema of the API server is trusted, the content is not: a pod without a worker's name raises ValueError and is ignored.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import Any

from trainyard.api.constants import (
    ANNOTATION_DUMP_STACKS,
    ANNOTATION_GENERATION,
    ANNOTATION_MAIN_CONTAINER,
    ANNOTATION_NETWORK,
    ANNOTATION_RANK_ORDER,
    ANNOTATION_TEMPLATE_HASH,
    ANNOTATION_WORKERS,
    ENV_JOB_UID,
    LABEL_JOB_UID,
    MAX_STACK_REQUEST,
)
from trainyard.api.recovery import RESTART_CODE
from trainyard.api.scheduling import RankOrder
from trainyard.api.spec import TrainingJobSpec
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.state import observed_exits
from trainyard.domain.state.accelerators import (
    ACCELERATORS,
    AcceleratorTable,
    count_processes,
    visible_accelerators,
)
from trainyard.domain.state.object_names import parse_worker_pod
from trainyard.domain.state.observed_exits import parse_time
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import STOP_DEADLINE_SECONDS, UNSCHEDULABLE, PodIssue, PodView
from trainyard.domain.state.workload import queue_request

Json = Mapping[str, Any]

STARTING_REASONS = frozenset({"ContainerCreating", "PodInitializing"})
"""The reasons for which a healthy container waits."""
DEFAULT_CONDITIONS = frozenset({"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"})
"""The conditions of every healthy pod."""
NO_CONDITIONS: frozenset[str] = frozenset()
"""Shared by all pods, to save memory."""
SHARED_PLACES = 4096
"""Places of nodes that are kept once."""
CONTAINERS_NOT_READY = "ContainersNotReady"
"""The reason of the kubelet for a pod that is not ready because of its containers."""


def job_view(raw: Json, accelerators: AcceleratorTable = ACCELERATORS) -> JobView:
    """Return a TrainingJob, its `processesPerReplica` as a number. Raises pydantic.ValidationError where spec or status is invalid."""
    metadata = raw["metadata"]
    spec = TrainingJobSpec.model_validate(raw["spec"])
    status = TrainingJobStatus.model_validate(raw.get("status") or {})
    auto = None
    if spec.processes_per_replica == "auto":
        # While a job is at rest, it has no group that another table could change.
        auto = count_processes(spec, accelerators, None if status.at_rest else status.internal.counted_processes)
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
        accelerators=visible_accelerators(spec.template["spec"]["containers"][0], accelerators),
        queue=queue_request(spec.scheduling, metadata),
        stack_request=str((metadata.get("annotations") or {}).get(ANNOTATION_DUMP_STACKS) or "")[:MAX_STACK_REQUEST],
    )


def pod_view(raw: Json, topology_keys: Sequence[str] = ()) -> PodView:
    """Return a worker's pod. Raises KeyError or ValueError where the object is none.

    Index and attempt come from the name, which cannot be edited; the labels of the same meaning are for selectors.
    `topology_keys`: the labels that name the place of a node, the widest part first.
    """
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    index, attempt, recreated = parse_worker_pod(metadata["name"])
    annotations = metadata.get("annotations") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    observed, restartable = _main_status(raw), is_restartable(raw)
    main: Json = observed.get("state") or {}
    will_restart = restartable and _will_restart(main, status)
    main = {} if will_restart else main
    end = observed_exits.main_exit(main, spec, status)
    end = observed_exits.eviction(status, conditions, main, end) or end
    init, init_since = _running_init(spec, status)
    disrupted_at, disruption = observed_exits.disruption(metadata, status, conditions, main, end)
    return PodView(
        uid=metadata["uid"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        resource_version=int(metadata["resourceVersion"]),
        job_uid=metadata["labels"][LABEL_JOB_UID],
        attempt=attempt,
        index=index,
        recreated=recreated,
        container_restarts=observed.get("restartCount", 0),
        workers=_number(annotations.get(ANNOTATION_WORKERS)),
        phase=status.get("phase", "Pending"),
        node=spec.get("nodeName"),
        place=_place(metadata, spec, topology_keys),
        ranks_ordered=annotations.get(ANNOTATION_RANK_ORDER) == RankOrder.PLACEMENT,
        ip=status.get("podIP") or "",
        scheduled="nodeName" in spec,
        scheduled_at=_scheduled_at(conditions),
        ready=_is_ready(conditions, observed),
        running="running" in main,
        running_since=parse_time(main["running"].get("startedAt")) if "running" in main else None,
        ended=not will_restart and _ended(spec, status),
        exit=end,
        conditions=frozenset(kind for kind, c in conditions.items() if c.get("status") == "True") - DEFAULT_CONDITIONS
        or NO_CONDITIONS,
        issue=_issue(status, conditions),
        disrupted_at=disrupted_at,
        disruption=disruption,
        deletion_time=parse_time(metadata.get("deletionTimestamp")),
        stop_requested=spec.get("activeDeadlineSeconds") == STOP_DEADLINE_SECONDS,
        clock_behind=observed_exits.clock_behind(status, conditions),
        removed="deletionTimestamp" in metadata and metadata.get("deletionGracePeriodSeconds") == 0,
        restartable=restartable,
        generation=_number(annotations.get(ANNOTATION_GENERATION)),
        template_hash=intern(annotations.get(ANNOTATION_TEMPLATE_HASH) or ""),
        network=intern(annotations.get(ANNOTATION_NETWORK) or ""),
        node_lost_at=observed_exits.node_lost_at(conditions),
        init_container=init,
        init_since=init_since,
    )


def _place(metadata: Json, spec: Json, topology_keys: Sequence[str]) -> tuple[str, ...]:
    """Return where the pod's node is. Kubernetes copies some labels of nodes to pods, and Kueue selects nodes by all of them."""
    known = {**(spec.get("nodeSelector") or {}), **(metadata.get("labels") or {})}
    return place_of(known, topology_keys)


def place_of(labels: Mapping[str, str], topology_keys: Sequence[str]) -> tuple[str, ...]:
    """Return the values of these labels, an empty one for a label that is missing; nothing where all are."""
    place = tuple(intern(labels.get(key) or "") for key in topology_keys)
    return _shared(place) if any(place) else ()


@lru_cache(maxsize=SHARED_PLACES)
def _shared(place: tuple[str, ...]) -> tuple[str, ...]:
    """Return one object for equal places, to save memory."""
    return place


def owner(raw: Json) -> Json | None:
    """Return the reference to the object that controls this one; None where there is none."""
    owners = raw["metadata"].get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller")), None)


def owner_uid(raw: Json) -> str | None:
    """Return the UID of the object that controls this one; None where there is none."""
    found = owner(raw)
    return found["uid"] if found else None


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


def _scheduled_at(conditions: Mapping[str, Json]) -> datetime | None:
    scheduled = conditions.get("PodScheduled", {})
    return parse_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None


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


def _running_init(spec: Json, status: Json) -> tuple[str, datetime | None]:
    """Return the init container that runs, and since when. Others wait for a sidecar until it has started."""
    if status.get("phase") != "Pending":
        return "", None
    sidecars = {c["name"] for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"}
    for init in status.get("initContainerStatuses") or ():
        running = (init.get("state") or {}).get("running")
        if running is not None and not (init["name"] in sidecars and init.get("started")):
            return init["name"], parse_time(running.get("startedAt"))
    return "", None


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
