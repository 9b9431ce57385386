"""The final state of a scenario, without what differs between runs: UIDs, versions, times, addresses."""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from tests.chaos.history import History, Step

Json = dict[str, Any]

PASSING: Final = frozenset(
    {
        *(
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "managedFields",
            "selfLink",
            "podUID",
            "trainyard.dev/job-uid",
        ),
        *(
            "lastTransitionTime",
            "startTime",
            "attemptStartTime",
            "runningTime",
            "completionTime",
            "activeSince",
            "time",
        ),
        *(
            "activeSeconds",
            "notBefore",
            "startedAt",
            "finishedAt",
            "selector",
            "clusterIP",
            "clusterIPs",
            "deletionTimestamp",
        ),
    }
)

# A watch that lags shows a pod's deletion and its end as one: which of the two the operator saw is no fact of the
# outcome.
DELETED: Final = re.compile(r": its pod is gone| \(pod [\w-]+ on [\w-]+\) was disrupted: Deleted: the pod was deleted")


def outcome(history: History) -> Json:
    """Jobs, pods and Services as they are now."""
    now = history.now
    jobs = {
        name: {key: _lasting(job[key]) for key in ("spec", "status")}
        for name, job in now["job"].items()
        if "status" in job
    }
    pods = {name: _pod(pod) for name, pod in now["pod"].items()}
    services = {name: _lasting(service["metadata"]) for name, service in now["service"].items()}
    return {"jobs": jobs, "pods": pods, "services": services}


def difference(expected: Any, found: Any, place: str = "") -> list[str]:
    """Where two outcomes differ, a line each."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = sorted({*expected, *found})
        return [line for key in keys for line in difference(expected.get(key), found.get(key), f"{place}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            line
            for number, (one, other) in enumerate(zip(expected, found, strict=True))
            for line in difference(one, other, f"{place}[{number}]")
        ]
    return [] if expected == found else [f"{place}: {found!r} in place of {expected!r}"]


def step_log(steps: Iterable[Step]) -> list[str]:
    """Return what happened, one line per step, for the reader of a failed test."""
    return [line for step in steps if step.kind != "event" for line in _lines(step)]


def _lines(step: Step) -> list[str]:
    head = f"{step.version} {step.kind} {step.name}"
    if step.old is None or step.new is None:
        return [f"{head}: {'made' if step.old is None else 'gone'}"]
    if step.kind == "job":
        parts = [difference(step.old.get(part), step.new.get(part), f".{part}") for part in ("spec", "status")]
        return [f"{head}{line}" for part in parts for line in part]
    deleted = ", to be deleted" if "deletionTimestamp" in step.new["metadata"] else ""
    return [f"{head}: {(step.new.get('status') or {}).get('phase')}{deleted}"]


def _pod(pod: Json) -> Json:
    # The two random words in a pod: its token's volume and, in the rendezvous id, the job's UID.
    text = re.sub(r"kube-api-access-\w+", "kube-api-access", json.dumps(pod))
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "some-uid", text)
    plain = json.loads(text)
    status = {key: plain["status"].get(key) for key in ("phase", "containerStatuses")}
    deleting = "deletionTimestamp" in pod["metadata"]
    return {**_lasting({"metadata": plain["metadata"], "spec": plain["spec"], "status": status}), "deleting": deleting}


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(held) for key, held in value.items() if key not in PASSING}
    if isinstance(value, list):
        return [_lasting(held) for held in value]
    return DELETED.sub(" was deleted", value) if isinstance(value, str) else value
