"""What `spec.scheduling` adds to pods, as YAML."""

from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from tests.support.jobs import Scene, job
from trainyard.api.internal_status import Group, PodGroup
from trainyard.api.scheduling import GangScheduler as G
from trainyard.domain.state.gang_schedulers import GangSchedulers
from trainyard.scheduling.scheduled_pod import kept_fields, placed

POD = {"metadata": {"name": "train-worker-0-1", "labels": {"team": "ml"}}, "spec": {"containers": []}}
ALL = GangSchedulers((G.NATIVE, G.VOLCANO, G.COSCHEDULING), frozenset(G), "gangs")
RACK = "example.com/rack"
OWN = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": RACK, "labelSelector": {}}]}}
OTHER = {
    "nodeAffinity": {"its": "own"},
    "podAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}]
    },
}


def in_gang(scheduler: G, members: int = 4, **fields: Any) -> Scene:
    pod_group = PodGroup(scheduler=scheduler, created_in_attempt=1, min_member=members)
    return job(4, **fields).with_status(pod_group=pod_group)


def of(scene: Scene, pod: dict[str, Any] | None = None, workers: int = 4) -> dict[str, Any]:
    return placed(scene.job, pod or POD, workers, ALL)


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        (
            G.NATIVE,
            """
            metadata: {name: train-worker-0-1, labels: {team: ml}}
            spec: {containers: [], schedulingGroup: {podGroupName: train-1}}
            """,
        ),
        (
            G.VOLCANO,
            """
            metadata: {name: train-worker-0-1, labels: {team: ml}, annotations: {scheduling.k8s.io/group-name: train-1}}
            spec: {containers: [], schedulerName: volcano}
            """,
        ),
        (
            G.COSCHEDULING,
            """
            metadata: {name: train-worker-0-1, labels: {team: ml, scheduling.x-k8s.io/pod-group: train-1}}
            spec: {containers: [], schedulerName: gangs}
            """,
        ),
    ],
)
def test_marks_of_a_gang(scheduler: G, expected: str) -> None:
    assert of(in_gang(scheduler)) == yaml.safe_load(expected)


def test_nothing_is_added_without_scheduling() -> None:
    assert of(job(4)) == POD


def test_users_fields_win() -> None:
    own = {**POD, "spec": {"containers": [], "schedulerName": "mine", "priorityClassName": "low"}}
    made = of(in_gang(G.VOLCANO, scheduling={"priorityClassName": "high"}), own)
    assert (made["spec"]["schedulerName"], made["spec"]["priorityClassName"]) == ("mine", "low")


def test_priority_fills_the_template() -> None:
    assert of(job(4, scheduling={"priorityClassName": "high"}))["spec"]["priorityClassName"] == "high"


def test_pods_of_a_smaller_group_leave_the_gang() -> None:
    scene = in_gang(G.VOLCANO, members=4)
    made = of(scene, workers=3)
    assert "annotations" not in made["metadata"]
    assert made["spec"]["schedulerName"] == "volcano"
    assert "annotations" in of(scene, workers=6)["metadata"]


def test_earlier_gang_is_not_joined() -> None:
    assert of(in_gang(G.NATIVE).with_status(attempt=2)) == POD
    kept = in_gang(G.NATIVE).with_status(attempt=2, group=Group(created_in_attempt=1))
    assert of(kept)["spec"]["schedulingGroup"] == {"podGroupName": "train-1"}


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        (
            True,
            """
            requiredDuringSchedulingIgnoredDuringExecution:
              - topologyKey: example.com/rack
                labelSelector: {matchLabels: {trainyard.dev/job-uid: job-uid, trainyard.dev/group: "3"}}
            """,
        ),
        (
            False,
            """
            preferredDuringSchedulingIgnoredDuringExecution:
              - weight: 100
                podAffinityTerm:
                  topologyKey: example.com/rack
                  labelSelector: {matchLabels: {trainyard.dev/job-uid: job-uid, trainyard.dev/group: "3"}}
            """,
        ),
    ],
    ids=["required", "preferred"],
)
def test_topology_binds_the_group_together(required: bool, expected: str) -> None:  # noqa: FBT001 - a column of the table
    scene = job(4, scheduling={"topology": {"key": RACK, "required": required}}).with_status(attempt=3)
    made = of(scene)
    assert made["spec"]["affinity"] == {"podAffinity": yaml.safe_load(expected)}
    assert made["metadata"]["labels"] == {"team": "ml", "trainyard.dev/group": "3"}


def test_replacement_follows_its_group() -> None:
    scene = job(4, scheduling={"topology": {"key": RACK}})
    kept = scene.with_status(attempt=5, group=Group(created_in_attempt=2))
    assert of(kept)["metadata"]["labels"]["trainyard.dev/group"] == "2"


def test_topology_is_added_to_other_affinity() -> None:
    scene = job(4, scheduling={"topology": {"key": RACK}})
    affinity = of(scene, {**POD, "spec": {"affinity": OTHER}})["spec"]["affinity"]
    assert affinity["nodeAffinity"] == OTHER["nodeAffinity"]
    [first, second] = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert (first["weight"], second["podAffinityTerm"]["topologyKey"]) == (1, RACK)


def test_users_affinity_with_the_key_wins() -> None:
    own = {**POD, "spec": {"affinity": OWN}}
    assert of(job(4, scheduling={"topology": {"key": RACK, "required": True}}), own) == own


@pytest.mark.parametrize(
    ("scene", "part"),
    [
        (in_gang(G.VOLCANO, template={"spec": {"schedulerName": "mine", "containers": [{}]}}), "schedulerName mine"),
        (
            job(4, template={"spec": {"schedulingGroup": {"podGroupName": "x"}, "containers": [{}]}}),
            "spec.schedulingGroup",
        ),
        (
            job(
                4,
                template={
                    "metadata": {"annotations": {"scheduling.k8s.io/group-name": "x"}},
                    "spec": {"containers": [{}]},
                },
            ),
            "annotation scheduling.k8s.io/group-name",
        ),
        (
            job(
                4,
                scheduling={"priorityClassName": "high"},
                template={"spec": {"priorityClassName": "low", "containers": [{}]}},
            ),
            "priorityClassName low",
        ),
        (
            job(4, scheduling={"topology": {"key": RACK}}, template={"spec": {"affinity": OWN, "containers": [{}]}}),
            f"topologyKey {RACK}",
        ),
    ],
    ids=["scheduler", "group", "group of Volcano", "priority", "topology"],
)
def test_kept_fields_are_named(scene: Scene, part: str) -> None:
    [note] = kept_fields(scene.job, ALL)
    assert part in note


@pytest.mark.parametrize(
    "scene",
    [
        job(4),
        in_gang(G.VOLCANO, template={"spec": {"schedulerName": "volcano", "containers": [{}]}}),
        job(4, scheduling={"priorityClassName": "high"}),
    ],
)
def test_nothing_is_kept_without_conflict(scene: Scene) -> None:
    assert kept_fields(scene.job, ALL) == []


def test_own_group_is_no_news_without_gangs() -> None:
    template = {"spec": {"schedulingGroup": {"podGroupName": "x"}, "containers": [{}]}}
    assert kept_fields(job(4, template=template).job, GangSchedulers()) == []


@pytest.mark.parametrize(
    ("queue", "fields"), [(None, "scheduling.gang"), ("research", "scheduling.gang and scheduling.queue")]
)
def test_own_group_names_what_it_replaces(queue: str | None, fields: str) -> None:
    template = {"spec": {"schedulingGroup": {"podGroupName": "x"}, "containers": [{}]}}
    view = replace(job(4, template=template).job, volcano_queue=queue)
    [note] = kept_fields(view, ALL)
    assert note.endswith(f"remove it to use {fields}")


LABELS = st.dictionaries(st.text("abc.-/", min_size=1), st.text(max_size=5), max_size=3)


@given(scheduler=st.sampled_from(G), labels=LABELS, annotations=LABELS, spec=LABELS, required=st.booleans())
def test_users_labels_and_fields_survive(
    scheduler: G,
    labels: Any,
    annotations: Any,
    spec: Any,
    required: bool,  # noqa: FBT001
) -> None:
    """YuniKorn, KAI and others read nothing but these."""
    scheduling = {"topology": {"key": RACK, "required": required}, "priorityClassName": "high"}
    pod = {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}
    made = of(in_gang(scheduler, scheduling=scheduling), pod)
    assert labels.items() <= made["metadata"]["labels"].items()
    assert annotations.items() <= made["metadata"]["annotations"].items()
    assert spec.items() <= made["spec"].items()
