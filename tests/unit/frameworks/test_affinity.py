"""The nodes that workers may use, within the user's own affinity."""

from copy import deepcopy
from typing import Any

import pytest

from tests.support.jobs import NOW
from tests.support.worker_pods import Json, worker
from trainyard.api.status import Avoidance, SuspectNode
from trainyard.frameworks.affinity import avoid_suspect_nodes
from trainyard.frameworks.manifests import worker_pod

ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
ARCH = {"key": "arch", "operator": "In", "values": ["amd64"]}
SPREAD = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}


def avoided(*names: str, how: Avoidance = Avoidance.REQUIRED) -> list[SuspectNode]:
    return [SuspectNode(name=name, avoidance=how, until=NOW) for name in names]


def no(name: str) -> Json:
    return {"key": "metadata.name", "operator": "NotIn", "values": [name]}


def required(*terms: Json) -> Json:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({}, required({"matchFields": [no("x"), no("y")]}), id="no affinity"),
        pytest.param({"affinity": None}, required({"matchFields": [no("x"), no("y")]}), id="an empty one"),
        pytest.param(
            {"affinity": required({"matchExpressions": [ZONE]}, {"matchExpressions": [ARCH]})},
            required(
                {"matchExpressions": [ZONE], "matchFields": [no("x"), no("y")]},
                {"matchExpressions": [ARCH], "matchFields": [no("x"), no("y")]},
            ),
            id="either of two terms",
        ),
        pytest.param(
            {"affinity": required({"matchFields": [no("z")]})},
            required({"matchFields": [no("z"), no("x"), no("y")]}),
            id="a node that the user avoids",
        ),
        pytest.param(
            {"affinity": SPREAD},
            {**SPREAD, **required({"matchFields": [no("x"), no("y")]})},
            id="apart from each other",
        ),
    ],
)
def test_suspect_nodes_are_excluded(before: Json, after: Json) -> None:
    kept = deepcopy(before)
    assert avoid_suspect_nodes(before, avoided("x", "y")) == {"affinity": after}
    assert before == kept, "the user's spec stays as it is"


def test_preferences_follow_those_of_the_user() -> None:
    preference = {"weight": 5, "preference": {"matchExpressions": [ZONE]}}
    spec: Any = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}}}
    changed = avoid_suspect_nodes(spec, avoided("x", "y", how=Avoidance.PREFERRED))
    assert changed["affinity"]["nodeAffinity"] == {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            preference,
            {"weight": 100, "preference": {"matchFields": [no("x"), no("y")]}},
        ]
    }


def test_no_suspect_nodes_add_nothing() -> None:
    assert avoid_suspect_nodes({}, avoided("x", how=Avoidance.NONE)) == {}


def test_worker_avoids_suspects_unless_node_is_named() -> None:
    made = worker()
    job = made.job.status.evolve(suspect_nodes=avoided("x"))
    bound = worker(pod={"nodeName": "x"})
    for each, expected in ((made, required({"matchFields": [no("x")]})), (bound, None)):
        object.__setattr__(each.job, "status", job)
        assert worker_pod(each)["spec"].get("affinity") == expected


ON_DEMAND = [
    {"key": "trainyard.dev/capacity-type", "operator": "NotIn", "values": ["spot"]},
    {"key": "karpenter.sh/capacity-type", "operator": "NotIn", "values": ["spot"]},
    {"key": "eks.amazonaws.com/capacityType", "operator": "NotIn", "values": ["SPOT"]},
    {"key": "cloud.google.com/gke-spot", "operator": "NotIn", "values": ["true"]},
    {"key": "cloud.google.com/gke-preemptible", "operator": "NotIn", "values": ["true"]},
    {"key": "kubernetes.azure.com/scalesetpriority", "operator": "NotIn", "values": ["spot"]},
]


def test_first_workers_on_demand_others_on_spot() -> None:
    own = required({"matchExpressions": [ZONE]})
    mixed: Json = {"replicas": 4, "pod": {"affinity": own}, "elastic": {"maxReplicas": 4, "onDemandReplicas": 2}}
    made = worker(index=1, **mixed)
    spec = worker_pod(made)["spec"]
    assert spec["affinity"] == required({"matchExpressions": [ZONE, *ON_DEMAND]})
    assert not any("spot" in each["key"] for each in spec["tolerations"])
    made = worker(index=2, **mixed)
    spec = worker_pod(made)["spec"]
    affinity = spec["affinity"]["nodeAffinity"]
    assert (
        affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        == required({"matchExpressions": [ZONE]})["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    )
    preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [each["preference"]["matchExpressions"][0]["key"] for each in preferred] == [
        each["key"] for each in ON_DEMAND
    ]
    assert [(each["key"], each["value"], each["effect"]) for each in spec["tolerations"] if "value" in each] == [
        ("cloud.google.com/gke-spot", "true", "NoSchedule"),
        ("cloud.google.com/gke-preemptible", "true", "NoSchedule"),
        ("kubernetes.azure.com/scalesetpriority", "spot", "NoSchedule"),
    ]
    assert own == required({"matchExpressions": [ZONE]}), "the job's own stays as it is"


@pytest.mark.parametrize("elastic", [None, {"maxReplicas": 4}])
def test_no_capacity_type_adds_no_affinity(elastic: Json | None) -> None:
    fields: Json = {"elastic": elastic} if elastic else {}
    spec = worker_pod(worker(index=0, replicas=2, **fields))["spec"]
    assert "affinity" not in spec
