"""The variables of XGBoost and LightGBM."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.support.worker_pods import container, environment_of, worker
from trainyard.api.network import DnsNames
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.boosting import machine_port
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.frameworks.environment import restart_environment, user_set_identity
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import dns_names

BOTH = pytest.mark.parametrize("framework", ["xgboost", "lightgbm"])
ADDRESSES = ("10.0.0.7", "10.0.0.8", "10.0.0.9")


@pytest.mark.parametrize(
    ("processes", "ranks"),
    [
        (
            1,
            {
                "DMLC_TASK_ID": "1",
                "DMLC_NUM_WORKER": "3",
                "RANK": "1",
                "WORLD_SIZE": "3",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
            },
        ),
        (
            2,
            {
                "TRAINYARD_RANK_VARIABLES": "RANK=rank,WORLD_SIZE=world-size,LOCAL_RANK=local-rank,"
                "LOCAL_WORLD_SIZE=local-world-size,DMLC_TASK_ID=rank,DMLC_NUM_WORKER=world-size"
            },
        ),
    ],
)
def test_xgboost_finds_its_tracker_at_worker_0(processes: int, ranks: dict[str, str]) -> None:
    made = worker(framework="xgboost", processesPerReplica=processes)
    tracker = {
        "DMLC_TRACKER_URI": "train-worker-0.train",
        "DMLC_TRACKER_PORT": "29501",
        "MASTER_ADDR": "train-worker-0.train",
        "MASTER_PORT": "29501",
    }
    assert environment_of(made).items() >= {**tracker, **ranks}.items()
    moved = restart_environment(replace(made, attempt=3, rendezvous="10.0.0.7"))
    assert moved.items() >= {"DMLC_TRACKER_URI": "10.0.0.7", "DMLC_TRACKER_PORT": "29502", **ranks}.items()


@pytest.mark.parametrize(
    ("processes", "machines"),
    [
        (1, "10.0.0.7:12401,10.0.0.8:12401,10.0.0.9:12401"),
        (2, "10.0.0.7:12402,10.0.0.7:12403,10.0.0.8:12402,10.0.0.8:12403,10.0.0.9:12402,10.0.0.9:12403"),
    ],
)
def test_lightgbm_gets_addresses_once_they_are_known(processes: int, machines: str) -> None:
    made = worker(framework="lightgbm", processesPerReplica=processes)
    port = {"WORKER_PORT": str(12400 + processes), "MASTER_PORT": str(12400 + processes)}
    at_creation = environment_of(made)
    assert at_creation.items() >= port.items()
    assert at_creation.keys().isdisjoint({"LIGHTGBM_MACHINES", "WORKER_ADDRS", "MASTER_ADDR"})
    known = {"LIGHTGBM_MACHINES": machines, "WORKER_ADDRS": "10.0.0.8,10.0.0.9", "MASTER_ADDR": "10.0.0.7", **port}
    assert restart_environment(replace(made, addresses=ADDRESSES)).items() >= known.items()


def test_single_worker_of_lightgbm_knows_itself() -> None:
    found = environment_of(worker(framework="lightgbm", replicas=1, index=0, attempt=1, processesPerReplica=2))
    expected = {"LIGHTGBM_MACHINES": "127.0.0.1:12400,127.0.0.1:12401", "WORKER_ADDRS": "", "MASTER_ADDR": "127.0.0.1"}
    assert found.items() >= expected.items()


def test_two_attempts_in_a_row_share_no_port() -> None:
    for pod in ({}, {"hostNetwork": True}):
        first = [
            machine_port(worker(framework="lightgbm", processesPerReplica=8, attempt=n, pod=pod)) for n in range(1, 900)
        ]
        ports = [set(range(port, port + 8)) for port in first]
        assert all(one.isdisjoint(other) for one, other in pairwise(ports))
        assert max(map(max, ports)) < 32768, "ports from there on are for outgoing connections"


@BOTH
def test_user_keeps_the_last_word(framework: str) -> None:
    own = container(env=[{"name": "MASTER_PORT", "value": "1"}, {"name": "OMP_NUM_THREADS", "value": "3"}])
    made = worker(own, framework=framework)
    assert environment_of(made).items() >= {"MASTER_PORT": "1", "OMP_NUM_THREADS": "3"}.items()
    assert "MASTER_PORT" not in restart_environment(made)
    assert user_set_identity(made) == ["MASTER_PORT"]


@BOTH
def test_threads_follow_the_resources(framework: str) -> None:
    shared: dict[str, Any] = {"resources": {"requests": {"cpu": "8"}}}
    made = worker(framework=framework, processesPerReplica=4, pod=shared)
    assert environment_of(made)["OMP_NUM_THREADS"] == "2"
    assert "OMP_NUM_THREADS" not in environment_of(worker(framework=framework))


@BOTH
def test_other_frameworks_variables_are_absent(framework: str) -> None:
    names = environment_of(worker(framework=framework)).keys()
    assert not [name for name in names if name.startswith(("PET_", "NCCL_", "TORCH_", "GLOO_"))]


@BOTH
def test_one_dns_name_is_enough(framework: str) -> None:
    assert dns_names(worker(framework=framework).spec) is DnsNames.MASTER


@pytest.mark.parametrize(("framework", "waits"), [("xgboost", True), ("lightgbm", True), ("torch", False)])
def test_agents_wait_where_ranks_start_together(framework: str, *, waits: bool) -> None:
    made = worker(container(command=["python3", "train.py"]), framework=framework, attempt=1)
    pod = worker_pod(made, AgentImage("operator:1"), CoordinatorEndpoint("https://c:8443"))
    found = {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
    assert (found.get("TRAINYARD_RENDEZVOUS") == "wait") is waits
