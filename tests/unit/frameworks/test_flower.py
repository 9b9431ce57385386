"""The command lines of the SuperLink and the SuperNodes, for the server and the clients."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worker_pods import environment_of, worker
from trainyard.api.network import DnsNames
from trainyard.api.roles import RoleName, member_index
from trainyard.frameworks.agent_wrapper import starts_ranks_itself
from trainyard.frameworks.environment import restart_environment, user_set_identity
from trainyard.frameworks.worker_spec import Worker, dns_names

SERVER = member_index(RoleName.SERVER, 0)
COMMAND = ["flwr", "run", "/app", "--stream"]


def member(index: int = 1, container: dict[str, Any] | None = None, **fields: Any) -> Worker:
    """Return a member as the operator makes it."""
    made = worker(
        {"name": "worker", "image": "x", "command": COMMAND, **(container or {})},
        index=index,
        framework="flower",
        roles=[{"name": "server"}],
        **fields,
    )
    return replace(made, job=made.job.of_member(index))


def test_client_joins_the_server() -> None:
    made = environment_of(member())
    assert made["TRAINYARD_FLOWER_START"] == "flower-supernode --superlink=train-server-0.train:29501"
    assert made["TRAINYARD_FLOWER_NODE_CONFIG"] == "partition-id=1 num-partitions=3"
    assert made["TRAINYARD_FLOWER_CLIENTS"] == "3"


def test_server_listens_and_is_no_client() -> None:
    made = environment_of(member(SERVER))
    assert made["TRAINYARD_FLOWER_START"] == "flower-superlink --port=29501"
    assert made["TRAINYARD_FLOWER_CLIENTS"] == "3"
    assert "TRAINYARD_FLOWER_NODE_CONFIG" not in made


@pytest.mark.parametrize("index", [1, SERVER])
def test_next_attempt_has_another_port(index: int) -> None:
    assert restart_environment(replace(member(index), attempt=3))["TRAINYARD_FLOWER_START"].endswith("29502")


def test_flower_neither_reports_nor_installs() -> None:
    made = environment_of(member())
    assert made["FLWR_TELEMETRY_ENABLED"] == "0"
    assert made["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert made["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def test_own_settings_are_kept() -> None:
    own = {"env": [{"name": "FLWR_TELEMETRY_ENABLED", "value": "1"}]}
    assert environment_of(member(1, own))["FLWR_TELEMETRY_ENABLED"] == "1"


@pytest.mark.parametrize(
    ("name", "value"), [("FLWR_HOME", "/flwr"), ("TRAINYARD_FLOWER_START", "flower-supernode --superlink=elsewhere:1")]
)
def test_own_address_is_kept_and_named(name: str, value: str) -> None:
    own = member(1, {"env": [{"name": name, "value": value}]})
    assert environment_of(own)[name] == value
    assert user_set_identity(own) == [name]


def test_no_rank_is_named() -> None:
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK", "PET_NNODES"} & environment_of(member()).keys()


def test_command_runs_once_in_each_pod() -> None:
    assert starts_ranks_itself(member(), ["python3", "train.py"])


def test_only_members_with_number_0_have_names() -> None:
    assert dns_names(member().spec) is DnsNames.MASTER


def test_one_process_drives_all_accelerators() -> None:
    made = member(1, {"resources": {"limits": {"nvidia.com/gpu": 4}}})
    assert (made.job.processes, environment_of(made)["TRAINYARD_ACCELERATORS_PER_REPLICA"]) == (1, "4")
