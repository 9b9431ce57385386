"""What the tests of views share: a worker's pod as the API server has it."""

from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]
AT = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
SOME_TIME = "2026-01-02T12:00:00Z"


def pod(status: Json | None = None, spec: Json | None = None, **metadata: Any) -> Json:
    meta = {
        "namespace": "ns",
        "name": "train-worker-2-5",
        "uid": "u",
        "resourceVersion": "77",
        "labels": {"trainyard.dev/job-uid": "j", "trainyard.dev/index": "9", "trainyard.dev/attempt": "x"},
        "annotations": {"trainyard.dev/workers": "4"},
        **metadata,
    }
    return {"metadata": meta, "spec": {"containers": [{"name": "main"}], **(spec or {})}, "status": status or {}}


def ended(code: int = 1, reason: str = "Error", **more: Any) -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": SOME_TIME, **more}}


def containers(main: Json, **others: Json) -> list[Json]:
    # The order is the kubelet's, which is not the template's.
    return [*({"name": name, "state": s} for name, s in others.items()), {"name": "main", "state": main}]


def condition(kind: str, status: str = "True", **more: str) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": SOME_TIME, **more}
