"""When unused devices for RDMA are reported."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, job, stored
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan
from trainyard.domain.state.network_view import NO_NETWORK, NetworkView
from trainyard.domain.state.worker_views import Network, WorkerReport

TCP, INFINIBAND = Network(uses_sockets=True, name="Socket"), Network(uses_sockets=False, name="IB")


def training(**limits: str) -> Scene:
    main = {**SUPERVISED["spec"]["containers"][0], "resources": {"limits": limits}}
    return job(2, template={**SUPERVISED, "spec": {**SUPERVISED["spec"], "containers": [main]}}).running()


def act(scene: Scene, network: Network | None, attempt: int = 1, profile: NetworkView = NO_NETWORK) -> Plan:
    """Plan after worker 0 has reported this network, twice: what is stored is not reported again."""
    reports = [WorkerReport(attempt, 0, (), NOW, network=network), WorkerReport(attempt, 1, (), NOW)]
    made = plan(replace(scene.snapshot, reports=reports, network=profile), NOW)
    assert made.status == stored(made.status)
    again = plan(replace(replace(scene, status=made.status).snapshot, reports=reports, network=profile), NOW)
    assert [each for each in again.events if each.type == "Warning"] == []
    return made


@pytest.mark.parametrize(
    "resource",
    [
        "rdma/hca",
        "rdma/ib",
        "vpc.amazonaws.com/efa",
        "mellanox.com/mlnx_sriov_rdma",
        "nvidia.com/hca_shared_devices_a",
        "openshift.io/mlx5_ib",
    ],
)
def test_unused_rdma_is_reported(resource: str) -> None:
    made = act(training(**{"nvidia.com/gpu": "8", resource: "1"}), TCP)
    condition = made.status.condition(C.RDMA_UNUSED)
    assert condition
    assert (condition.status, condition.reason) == ("True", Reason.TCP_IN_USE)
    assert condition.message.startswith(f"the workers request {resource}, but NCCL uses TCP (network Socket);")
    assert [(each.type, each.reason) for each in made.events] == [("Warning", Reason.TCP_IN_USE)]
    assert made.status.attempt == 1


@pytest.mark.parametrize(
    ("limits", "network"),
    [
        ({"rdma/hca": "1"}, INFINIBAND),
        ({"rdma/hca": "1"}, None),
        ({"nvidia.com/gpu": "8", "memory": "64Gi", "hugepages-2Mi": "1Gi"}, TCP),
        ({}, TCP),
    ],
    ids=["it is used", "nothing is known", "none is requested", "nothing is requested"],
)
def test_nothing_to_report(limits: dict[str, Any], network: Network | None) -> None:
    made = act(training(**limits), network)
    assert (made.status.condition(C.RDMA_UNUSED), made.events) == (None, [])


def test_profile_expects_another_network_than_tcp() -> None:
    condition = act(training(), TCP, profile=NetworkView("gpudirect-tcpxo", "x")).status.condition(C.RDMA_UNUSED)
    assert condition
    assert (condition.status, condition.reason) == ("True", Reason.TCP_IN_USE)
    assert condition.message.startswith("network.profile is gpudirect-tcpxo, but NCCL uses TCP (network Socket);")


def test_profile_for_tcp_needs_no_devices() -> None:
    made = act(training(**{"rdma/hca": "1"}), TCP, profile=NetworkView("tcp", "x", sockets=True))
    assert (made.status.condition(C.RDMA_UNUSED), made.events) == (None, [])


def test_next_attempt_may_use_it() -> None:
    scene = training(**{"rdma/hca": "1"})
    before = act(scene, TCP).status
    restarted = plan(replace(scene, status=before).failed(1).snapshot, NOW).status
    condition = restarted.condition(C.RDMA_UNUSED)
    assert condition
    assert (restarted.attempt, condition.status, condition.message) == (
        2,
        "False",
        "no network is in use: the group restarts",
    )
