"""Find out from the JSON of a pod how its worker ended: the exit of a container, or the disruption that caused it. Pure.

The schema of the API server is trusted, the content is not.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard.api.recovery import PEER_LOST_CODE, SAVED_CODE
from trainyard.api.spec import MAX_GRACE_SECONDS
from trainyard.domain.state.termination import Exit, Kind, headline, read
from trainyard.domain.state.worker_views import PodIssue

Json = Mapping[str, Any]

FAR_AWAY = datetime.max.replace(tzinfo=UTC)
MESSAGE_LIMIT = 2048
"""The most characters that are kept of a message."""
LOST_CONTAINER_REASONS = frozenset({"ContainerStatusUnknown", "Unknown"})
"""The reasons of the kubelet and of containerd for a container that was lost, for example at a reboot: its exit code is invented."""
EVICTED = "Evicted"
"""The reason of the kubelet for a pod that it terminates, or does not admit, because a resource is short."""
UNCHARGED_CODES = frozenset({0, SAVED_CODE, PEER_LOST_CODE})
"""Exit codes that do not count against the restart budget."""
SIGKILL_CODE = 128 + 9


def parse_time(text: str | None) -> datetime | None:
    """Return a time of the API server; FAR_AWAY where Python cannot represent it, None where there is none."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        # For example after a grace period of ten thousand years.
        return FAR_AWAY


def main_exit(main: Json, spec: Json, status: Json) -> Exit | None:
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


def _reported_exit(state: Json, init_container: str | None = None) -> Exit | None:
    ended: Json = state.get("terminated") or {}
    finished = parse_time(ended.get("finishedAt"))
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


def eviction(status: Json, conditions: Mapping[str, Json], main: Json, end: Exit | None) -> Exit | None:
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
    over = parse_time(conditions.get("Ready", {}).get("lastTransitionTime"))
    return Exit(over, SIGKILL_CODE, EVICTED, words) if over else None


def disruption(
    metadata: Json, status: Json, conditions: Mapping[str, Json], main: Json, end: Exit | None
) -> tuple[datetime | None, PodIssue | None]:
    """Return when the pod was disrupted (None: not known), and by what.

    A deletion counts from the request, not from the end of the grace period.
    """
    target = conditions.get("DisruptionTarget", {})
    disrupted = parse_time(target.get("lastTransitionTime")) if target.get("status") == "True" else None
    deletion = parse_time(metadata.get("deletionTimestamp"))
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


def clock_behind(status: Json, conditions: Mapping[str, Json]) -> bool:
    """Return whether the node started the pod, by its own clock, before the pod was scheduled, by the API server's."""
    scheduled = conditions.get("PodScheduled", {})
    scheduled_at = parse_time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None
    started = parse_time(status.get("startTime"))
    return scheduled_at is not None and started is not None and started < scheduled_at


def node_lost_at(conditions: Mapping[str, Json]) -> datetime | None:
    """Return when the pod was given up with its node, as far as the pod shows it: no permission to read nodes is needed.

    The taint manager deletes it, which it does for any NoExecute taint. The node controller makes Ready False and leaves
    ContainersReady, which a kubelet does only for a readiness gate, and then with a reason. The next update of the kubelet makes it
    consistent again.
    """
    ready, containers = conditions.get("Ready", {}), conditions.get("ContainersReady", {})
    silent = ready.get("status") == "False" and containers.get("status") == "True" and not ready.get("reason")
    target = conditions.get("DisruptionTarget", {})
    given_up = target.get("status") == "True" and target.get("reason") == "DeletionByTaintManager"
    return parse_time(target.get("lastTransitionTime")) if silent and given_up else None
