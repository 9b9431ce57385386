"""A finished job refuses changes of its spec. Its metadata, its end of life and its status can be changed."""

from typing import Any

import pytest

from tests.api.nodes import MERGE, Namespace
from tests.support.control_plane import RefusedError

MESSAGE = r"422.*spec: Forbidden: the job is finished; delete it and create it again"
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "example.com/trainer:2"}]}}


def end(lab: Namespace, kind: str, status: str = "True") -> None:
    """Write the status as the operator does at the end of a job."""
    condition = {"type": kind, "status": status, "reason": "Because", "message": "x"}
    condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    path = f"{lab._jobs('done')}/status"
    lab.plane.call("PATCH", path, {"status": {"phase": "Running", "conditions": [condition]}}, MERGE)


@pytest.fixture
def done(lab: Namespace) -> Any:
    lab.submit("done", replicas=2, processesPerReplica=1)
    yield lab
    lab.remove("done")


@pytest.mark.parametrize("kind", ["Complete", "Failed"])
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"replicas": 3}, id="size"),
        pytest.param({"template": TEMPLATE}, id="template"),
        pytest.param({"template": TEMPLATE, "lifecycle": {"suspend": True}}, id="template under suspension"),
        pytest.param({"lifecycle": {"suspend": True}}, id="suspension"),
        pytest.param({"lifecycle": {"activeDeadlineSeconds": 5}}, id="deadline"),
        pytest.param({"recovery": {"maxRestarts": 9}}, id="budget"),
        pytest.param({"elastic": {"maxReplicas": 4}}, id="elastic"),
        pytest.param({"processesPerReplica": 2}, id="processes"),
        pytest.param({"parallelism": {"tensor": 2}}, id="parallelism"),
    ],
)
def test_finished_job_refuses_changes(done: Namespace, kind: str, spec: dict[str, Any]) -> None:
    end(done, kind)
    with pytest.raises(RefusedError, match=MESSAGE):
        done.change("done", **spec)
    if "replicas" in spec:
        with pytest.raises(RefusedError, match="the job is finished"):
            done.scale("done", 3)


def test_finished_job_admits_its_end(done: Namespace) -> None:
    end(done, "Complete")
    done.change("done", lifecycle={"ttlSecondsAfterFinished": 60, "cleanPods": "All"})
    one = done._jobs("done")
    done.plane.call("PATCH", one, {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}, MERGE)
    done.plane.call("PATCH", one, {"metadata": {"finalizers": ["example.com/keep"]}}, MERGE)
    done.plane.call("PATCH", one, {"metadata": {"finalizers": None}}, MERGE)
    same = {key: value for key, value in done.job("done").items() if key != "status"}
    done.plane.call("PUT", one, same)
    done.plane.call("PATCH", f"{one}/status", {"status": {"phase": "Complete"}}, MERGE)
    assert done.job("done")["spec"]["lifecycle"]["ttlSecondsAfterFinished"] == 60


@pytest.mark.parametrize(("kind", "status"), [("Complete", "False"), ("Suspended", "True"), ("Stalled", "True")])
def test_job_that_continues_admits_changes(done: Namespace, kind: str, status: str) -> None:
    end(done, kind, status)
    done.change("done", replicas=3)
    done.change("done", template=TEMPLATE, lifecycle={"suspend": True})
