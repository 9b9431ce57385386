"""From the API server's JSON to views: what a kubelet, a scheduler and hands at the labels make of a pod."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from tests.unit.domain.observing import AT, SOME_TIME, Json, condition, containers, ended, pod
from trainyard.api.status import Phase
from trainyard.domain.state.observe import job_view, owner_uid, pod_view
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import PodIssue, PodView, State


def test_pod_that_was_only_just_made() -> None:
    assert pod_view(pod()) == PodView("u", "ns", "train-worker-2-5", 77, "j", 5, 2, 4, "Pending")


def test_running_pod() -> None:
    raw = pod(
        {
            "phase": "Running",
            "conditions": [condition("Ready"), condition("PodScheduled")],
            "containerStatuses": containers({"running": {"startedAt": SOME_TIME}}),
        },
        {"nodeName": "node1"},
    )
    seen = pod_view(raw)
    assert (seen.node, seen.scheduled, seen.running, seen.ready) == ("node1", True, True, True)
    assert (seen.exit, seen.issue, seen.disruption) == (None, None, None)
    assert seen.running_since == datetime.fromisoformat(SOME_TIME)


@pytest.mark.parametrize(
    ("annotations", "workers"),
    [({"trainyard.dev/workers": "4"}, 4), ({}, 0), (None, 0), ({"trainyard.dev/workers": "many"}, 0)],
)
def test_hands_at_the_annotation(annotations: Json | None, workers: int) -> None:
    assert pod_view(pod(annotations=annotations)).workers == workers


@pytest.mark.parametrize(
    "name",
    [
        "train",
        "train-worker-1",
        "train-mayor-0-1",
        "train-ps-1000-1",
        "train-worker-a-1",
        "-worker-0-1x",
        f"train-worker-0-{10**15}",
    ],
)
def test_pod_without_a_workers_name_is_none(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a worker's pod"):
        pod_view(pod(name=name))


def test_pod_without_the_jobs_uid_is_none() -> None:
    with pytest.raises(KeyError):
        pod_view(pod(labels={}))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(
            pod({"phase": "Failed", "containerStatuses": containers(ended(3, message="boom\n"))}),
            Exit(AT, 3, "Error", "boom"),
            id="the main container",
        ),
        pytest.param(
            pod({"phase": "Running", "containerStatuses": containers(ended(0, "Completed"), proxy={"running": {}})}),
            Exit(AT, 0, "Completed", ""),
            id="the main container, while a sidecar runs on",
        ),
        pytest.param(
            pod({"phase": "Running", "containerStatuses": containers({"running": {}}, proxy=ended(9))}),
            None,
            id="a sidecar alone does not count",
        ),
        pytest.param(
            pod(
                {
                    "phase": "Failed",
                    "initContainerStatuses": [
                        {"name": "first", "state": ended(0, "Completed")},
                        {"name": "proxy", "state": ended(137)},
                        {"name": "fetch", "state": ended(4)},
                    ],
                    "containerStatuses": containers({"waiting": {"reason": "PodInitializing"}}),
                },
                {
                    "initContainers": [
                        {"name": "first"},
                        {"name": "proxy", "restartPolicy": "Always"},
                        {"name": "fetch"},
                    ]
                },
            ),
            Exit(AT, 4, "Error", "", "fetch"),
            id="the init container that failed, not the sidecar that went with it",
        ),
        pytest.param(
            pod(
                {
                    "phase": "Pending",
                    "initContainerStatuses": [{"name": "fetch", "state": ended(4)}],
                },
            ),
            None,
            id="an init container that may be tried again",
        ),
        pytest.param(
            pod({"phase": "Failed", "containerStatuses": containers({"terminated": {"exitCode": 137}})}),
            None,
            id="an end at no time is none",
        ),
        pytest.param(
            pod({"phase": "Failed", "containerStatuses": containers(ended(255, "Unknown"))}),
            None,
            id="an exit code that containerd made up after a reboot",
        ),
    ],
)
def test_exit(raw: Json, expected: Exit | None) -> None:
    assert pod_view(raw).exit == expected


@pytest.mark.parametrize(
    ("status", "whole"),
    [
        pytest.param({}, False, id="not begun"),
        pytest.param({"phase": "Failed"}, True, id="refused"),
        pytest.param(
            {"phase": "Running", "containerStatuses": containers(ended())}, True, id="before the phase changes"
        ),
        pytest.param(
            {"phase": "Running", "containerStatuses": containers(ended(), proxy={"running": {}})},
            False,
            id="a sidecar runs",
        ),
        pytest.param({"phase": "Running", "containerStatuses": []}, False, id="nothing is known"),
    ],
)
def test_pod_has_ended_when_all_its_containers_have(status: Json, *, whole: bool) -> None:
    names = sorted(c["name"] for c in status.get("containerStatuses") or [{"name": "main"}])
    assert pod_view(pod(status, {"containers": [{"name": name} for name in names]})).ended is whole


UNSEEN = condition("DisruptionTarget", reason="DeletionByTaintManager")
NOT_READY: Json = {"type": "Ready", "status": "False"}
WELL: Json = {"type": "ContainersReady", "status": "True"}


@pytest.mark.parametrize(
    ("conditions", "lost"),
    [
        pytest.param([UNSEEN, NOT_READY, WELL], True, id="as the control plane leaves it"),
        pytest.param([UNSEEN, {**NOT_READY, "status": "True"}, WELL], False, id="a taint on a node that is there"),
        pytest.param(
            [UNSEEN, NOT_READY, {**WELL, "status": "False"}], False, id="the kubelet has reported exited containers"
        ),
        pytest.param(
            [UNSEEN, {**NOT_READY, "reason": "ReadinessGatesNotReady"}, WELL], False, id="the kubelet waits for a gate"
        ),
        pytest.param([NOT_READY, WELL], False, id="for less than the toleration"),
        pytest.param([{**UNSEEN, "status": "False"}, NOT_READY, WELL], False, id="called off"),
        pytest.param([{**UNSEEN, "reason": "EvictionByEvictionAPI"}, NOT_READY, WELL], False, id="drained"),
        pytest.param([{**UNSEEN, "lastTransitionTime": None}, NOT_READY, WELL], False, id="at an unknown time"),
        pytest.param([UNSEEN], False, id="it never ran"),
        pytest.param([], False, id="nothing is known"),
    ],
)
def test_pod_lost_with_its_node(conditions: list[Json], *, lost: bool) -> None:
    assert pod_view(pod({"conditions": conditions})).node_lost_at == (AT if lost else None)


@pytest.mark.parametrize(
    ("metadata", "removed"),
    [
        ({}, False),
        ({"deletionTimestamp": SOME_TIME, "deletionGracePeriodSeconds": 30}, False),
        ({"deletionTimestamp": SOME_TIME, "deletionGracePeriodSeconds": 0}, True),
        ({"deletionTimestamp": SOME_TIME}, False),
        ({"deletionGracePeriodSeconds": 0}, False),
    ],
)
def test_a_pod_that_only_a_finalizer_keeps(metadata: Json, *, removed: bool) -> None:
    assert pod_view(pod(**metadata)).removed is removed


@pytest.mark.parametrize(
    ("started", "behind"),
    [
        pytest.param("2026-01-02T11:50:10Z", True, id="it began ten minutes before it had a node"),
        pytest.param("2026-01-02T11:59:59Z", True, id="a second before"),
        pytest.param(SOME_TIME, False, id="in the same second"),
        pytest.param("2026-01-02T12:10:00Z", False, id="later, as its node came to it, or by a clock that is ahead"),
        pytest.param(None, False, id="at no known time"),
    ],
)
def test_a_node_whose_clock_is_behind(started: str | None, *, behind: bool) -> None:
    raw = pod({"startTime": started, "conditions": [condition("PodScheduled")]})
    assert pod_view(raw).clock_behind is behind
    assert pod_view(pod({"startTime": started})).clock_behind is False


DISRUPTION = condition("DisruptionTarget", reason="EvictionByEvictionAPI", message="drained")
DELETED: Json = {"deletionTimestamp": "2026-01-02T12:00:40Z", "deletionGracePeriodSeconds": 30}


@pytest.mark.parametrize(
    ("raw", "at", "by"),
    [
        pytest.param(pod({"conditions": [DISRUPTION]}), AT, "EvictionByEvictionAPI", id="a disruption"),
        pytest.param(
            pod({"conditions": [{**DISRUPTION, "status": "False"}]}), None, None, id="one that was called off"
        ),
        pytest.param(pod(**DELETED), AT.replace(second=10), "Deleted", id="a deletion counts from its request"),
        pytest.param(
            pod({"conditions": [DISRUPTION]}, **DELETED), AT, "EvictionByEvictionAPI", id="the reason of a deletion"
        ),
        pytest.param(
            pod({"conditions": [DISRUPTION]}, deletionTimestamp="2026-01-02T11:00:00Z"),
            datetime(2026, 1, 2, 11, tzinfo=UTC),
            "Deleted",
            id="a deletion before the disruption",
        ),
        pytest.param(
            pod({"phase": "Failed", "reason": "Terminated", "containerStatuses": containers(ended(137))}),
            None,
            "Terminated",
            id="a node that ended the whole pod as it shut down",
        ),
        pytest.param(
            pod({"phase": "Failed", "containerStatuses": containers(ended(255, "Unknown"))}),
            None,
            "ContainerStatusUnknown",
            id="a node that was restarted",
        ),
        pytest.param(
            pod({"phase": "Failed", "containerStatuses": containers({"terminated": {"exitCode": 137}})}),
            None,
            "ContainerStatusUnknown",
            id="a container that was lost",
        ),
        pytest.param(
            pod({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}),
            None,
            None,
            id="a refusal by the node is not a loss",
        ),
        pytest.param(pod({"phase": "Failed", "containerStatuses": containers(ended())}), None, None, id="a failure"),
    ],
)
def test_taken_away(raw: Json, at: datetime | None, by: str | None) -> None:
    seen = pod_view(raw)
    assert (seen.disrupted_at, seen.disruption and seen.disruption.reason) == (at, by)
    assert (seen.state is State.DISRUPTED) == (by is not None or (seen.phase == "Failed" and seen.exit is None))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param(
            pod({"conditions": [condition("PodScheduled", "False", reason="Unschedulable", message="0/3 nodes")]}),
            PodIssue("Unschedulable", "0/3 nodes"),
            id="no node",
        ),
        pytest.param(
            pod({"containerStatuses": containers({"waiting": {"reason": "ImagePullBackOff", "message": "no image"}})}),
            PodIssue("ImagePullBackOff", "no image"),
            id="no image",
        ),
        pytest.param(
            pod({"initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]}),
            PodIssue("ErrImagePull", ""),
            id="no image of an init container",
        ),
        pytest.param(
            pod({"containerStatuses": containers({"waiting": {"reason": "SomethingNew"}})}),
            PodIssue("SomethingNew", ""),
            id="an unknown reason",
        ),
        pytest.param(
            pod({"containerStatuses": containers({"waiting": {"reason": "ContainerCreating"}})}), None, id="on its way"
        ),
        pytest.param(pod({"containerStatuses": containers({"waiting": {}})}), None, id="waiting for no reason"),
        pytest.param(
            pod({"phase": "Failed", "reason": "OutOfcpu", "message": "node has 2"}),
            PodIssue("OutOfcpu", "node has 2"),
            id="refused",
        ),
        pytest.param(pod({"phase": "Failed"}), None, id="failed for no reason"),
    ],
)
def test_pod_issue(raw: Json, expected: PodIssue | None) -> None:
    assert pod_view(raw).issue == expected


def test_owner_is_the_controller() -> None:
    owners = [{"uid": "a"}, {"uid": "b", "controller": True}]
    assert owner_uid({"metadata": {"ownerReferences": owners}}) == "b"
    assert owner_uid({"metadata": {"ownerReferences": owners[:1]}}) is None
    assert owner_uid({"metadata": {}}) is None


def tj(spec: Json | None = None, status: Json | None = None) -> Json:
    meta = {"name": "train", "namespace": "ns", "uid": "u", "generation": 2, "resourceVersion": "5"}
    template = {"spec": {"containers": [{"name": "main"}]}}
    raw: Json = {"metadata": meta, "spec": {"template": template, **(spec or {})}}
    return raw if status is None else {**raw, "status": status}


def test_job_without_a_status() -> None:
    seen = job_view(tj())
    assert (seen.uid, seen.name, seen.generation, seen.resource_version, seen.deleting) == ("u", "train", 2, 5, False)
    assert (seen.status.attempt, seen.status.internal.launched_attempt, seen.status.internal.active_since) == (
        1,
        0,
        None,
    )


def test_status_of_a_newer_operator_can_be_read() -> None:
    newer = {"phase": "Resizing", "hangs": 3, "conditions": [condition("Degraded", reason="Slow", since="x")]}
    seen = job_view(tj(status=newer))
    assert seen.status.phase is Phase.PENDING
    assert [c.type for c in seen.status.conditions] == ["Degraded"]


def test_spec_of_a_newer_operator_cannot() -> None:
    with pytest.raises(ValidationError, match="framework"):
        job_view(tj({"framework": "quantum"}))


@pytest.mark.parametrize("grace", [10**11, 2**63 - 1])
def test_grace_period_beyond_all_dates_is_read(grace: int) -> None:
    view = pod_view(pod(deletionTimestamp="5195-01-02T12:00:00Z", deletionGracePeriodSeconds=grace))
    assert view.deletion_time is not None
    far = pod_view(pod(deletionTimestamp="12345-01-02T12:00:00Z", deletionGracePeriodSeconds=grace))
    assert far.deletion_time is not None
    assert far.state is State.DISRUPTED


def test_annotation_of_thousands_of_digits_is_ignored() -> None:
    assert pod_view(pod(annotations={"trainyard.dev/workers": "9" * 5000})).workers == 0


@pytest.mark.parametrize(("text", "workers"), [("999999999", 999_999_999), ("1000000000", 0), ("two", 0)])
def test_worker_count_has_at_most_nine_digits(text: str, workers: int) -> None:
    assert pod_view(pod(annotations={"trainyard.dev/workers": text})).workers == workers


BLOCK, RACK = "example.com/block", "example.com/rack"


@pytest.mark.parametrize(
    ("labels", "selector", "place"),
    [
        ({}, None, ()),
        ({"other": "x"}, {"pool": "gpu"}, ()),
        ({BLOCK: "b1", RACK: "r7"}, None, ("b1", "r7")),
        ({}, {BLOCK: "b1", RACK: "r7"}, ("b1", "r7")),
        ({RACK: "r7"}, {RACK: "r8", BLOCK: "b1"}, ("b1", "r7")),
        ({RACK: "r7"}, None, ("", "r7")),
    ],
    ids=["nothing", "other labels", "by the scheduler", "by Kueue", "by both", "a part"],
)
def test_pod_shows_the_place_of_its_node(labels: Json, selector: Json | None, place: tuple[str, ...]) -> None:
    raw = pod(spec={"nodeSelector": selector}, labels={"trainyard.dev/job-uid": "j", **labels})
    assert pod_view(raw, (BLOCK, RACK)).place == place
    assert pod_view(raw).place == ()


def test_equal_places_are_kept_once() -> None:
    raw = pod(labels={"trainyard.dev/job-uid": "j", RACK: "r7"})
    assert pod_view(raw, (RACK,)).place is pod_view(raw, (RACK,)).place


@pytest.mark.parametrize(("value", "expected"), [("placement", True), ("index", False), (None, False)])
def test_pod_shows_whether_its_ranks_wait(value: str | None, *, expected: bool) -> None:
    annotations = {} if value is None else {"trainyard.dev/rank-order": value}
    assert pod_view(pod(annotations=annotations)).ranks_ordered is expected
