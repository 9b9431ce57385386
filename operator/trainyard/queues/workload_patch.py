"""The patches of a Workload, one for each change that the domain decides. Pure.

All are JSON merge patches with the version that was seen, so that a stale one fails. A list of conditions is replaced as a whole: it
repeats those that do not change.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never

from trainyard.domain.state.observed_exits import parse_time
from trainyard.domain.state.workload import FINALIZER, WorkloadView
from trainyard.domain.workload_changes import (
    Activate,
    Adapt,
    DropFinalizer,
    Finish,
    ReclaimPods,
    ReleaseQuota,
    ReportPodsReady,
    WorkloadChange,
)
from trainyard.frameworks.worker_spec import Json

ADAPTED = ("queueName", "podSets", "priority", "priorityClassRef", "maximumExecutionTimeSeconds")
"""The fields of a Workload's spec that follow the job. `active` does not: others set it too."""


@dataclass(frozen=True, slots=True)
class WorkloadPatch:
    """A patch, and the subresource that it goes to; None: the object itself."""

    body: Json
    subresource: str | None = None


def workload_patch(
    view: WorkloadView, change: WorkloadChange, now: datetime, wanted: Json | None = None
) -> WorkloadPatch:
    """Return the patch of this version of the Workload. `wanted`: the manifest that the job would create now."""
    match change:
        case Adapt():
            return _adapted(view, wanted or {})
        case Activate(active):
            return WorkloadPatch(_with_version(view, spec={"active": active}))
        case DropFinalizer():
            kept = [each for each in view.finalizers if each != FINALIZER]
            return WorkloadPatch(_with_version(view, metadata={"finalizers": kept}))
        case ReleaseQuota():
            return WorkloadPatch(_with_version(view, status=_released(view, change, now)), "status")
        case ReportPodsReady(ready, reason, message):
            updated = _conditions(view, now, ("PodsReady", ready, reason, message))
            return WorkloadPatch(_with_version(view, status={"conditions": updated}), "status")
        case ReclaimPods(counts):
            pods = [{"name": role, "count": count} for role, count in counts]
            return WorkloadPatch(_with_version(view, status={"reclaimablePods": pods}), "status")
        case Finish(reason, message):
            updated = _conditions(view, now, ("Finished", True, reason, message))
            return WorkloadPatch(_with_version(view, status={"conditions": updated}), "status")
        case _:
            assert_never(change)


def _with_version(view: WorkloadView, *, metadata: Json | None = None, **parts: Json) -> Json:
    seen = {"uid": view.uid, "resourceVersion": str(view.resource_version)}
    return {"metadata": {**seen, **(metadata or {})}, **parts}


def _adapted(view: WorkloadView, wanted: Json) -> WorkloadPatch:
    spec = {name: wanted["spec"].get(name) for name in ADAPTED}
    return WorkloadPatch(_with_version(view, metadata={"annotations": wanted["metadata"]["annotations"]}, spec=spec))


def _released(view: WorkloadView, change: ReleaseQuota, now: datetime) -> Json:
    """Return the status of a Workload that gives its quota back: in one patch, as Kueue's own jobs do it."""
    ready = all(check.state == "Ready" for check in view.checks)
    unmet, text = ("", "") if ready else ("UnsatisfiedChecks", " and not all checks ready")
    updated = _conditions(
        view,
        now,
        ("Requeued", change.requeued, change.reason, change.message),
        ("QuotaReserved", False, "Pending", change.message),
        ("Admitted", False, f"NoReservation{unmet}", f"The workload has no reservation{text}"),
    )
    # The next attempt needs all pods, those that were given back too.
    status: Json = {"conditions": updated, "admission": None, "reclaimablePods": None}
    if (spent := _admitted_seconds(view, now)) is not None:
        status["accumulatedPastExecutionTimeSeconds"] = view.executed_seconds + spent
    return status


def _admitted_seconds(view: WorkloadView, now: datetime) -> int | None:
    """Return for how long the Workload has been admitted, which counts towards its maximum execution time."""
    admitted = view.condition("Admitted")
    since = parse_time(json.loads(admitted.raw).get("lastTransitionTime")) if admitted and admitted.holds else None
    return None if since is None else max(0, int((now - since).total_seconds()))


def _conditions(view: WorkloadView, now: datetime, *updates: tuple[str, bool, str, str]) -> list[dict[str, Any]]:
    """Return all conditions of the Workload, with these set: type, whether it holds, reason, message."""
    result: dict[str, dict[str, Any]] = {each.type: json.loads(each.raw) for each in view.conditions}
    for kind, holds, reason, message in updates:
        before, status = result.get(kind), "True" if holds else "False"
        changed = before is None or before["status"] != status
        result[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": view.generation,
            "lastTransitionTime": f"{now:%Y-%m-%dT%H:%M:%SZ}"
            if changed or before is None
            else before["lastTransitionTime"],
        }
    return [*result.values()]
