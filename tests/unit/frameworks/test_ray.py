"""The address of the head and the options of `ray start`, for the head and the workers."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worker_pods import environment_of, worker
from trainyard.api.network import DnsNames
from trainyard.frameworks.agent_wrapper import starts_ranks_itself
from trainyard.frameworks.environment import restart_environment, user_set_identity
from trainyard.frameworks.worker_spec import Worker, dns_names

HEAD = 13_000
COMMAND = ["python3", "train.py"]


def member(index: int = 1, container: dict[str, Any] | None = None, **fields: Any) -> Worker:
    """Return a member as the operator makes it."""
    made = worker(
        {"name": "worker", "image": "x", "command": COMMAND, **(container or {})},
        index=index,
        framework="ray",
        roles=[{"name": "head"}],
        **fields,
    )
    return replace(made, job=made.job.of_member(index))


def options(made: Worker) -> list[str]:
    return str(environment_of(made)["TRAINYARD_RAY_START"]).split()


def test_worker_joins_the_head() -> None:
    made = environment_of(member())
    assert made["TRAINYARD_RAY_START"] == "--address=train-head-0.train:29501"
    assert made["RAY_ADDRESS"] == "train-head-0.train:29501"
    assert made["TRAINYARD_RAY_WORKERS"] == "3"


def test_head_opens_no_dashboard_and_runs_no_ranks() -> None:
    made = environment_of(member(HEAD, {"resources": {"limits": {"cpu": "4", "nvidia.com/gpu": 1}}}))
    assert made["TRAINYARD_RAY_START"] == "--head --port=29501 --include-dashboard=false --num-cpus=0"
    # Its own name may resolve later.
    assert made["RAY_ADDRESS"] == "127.0.0.1:29501"
    assert made["TRAINYARD_RAY_WORKERS"] == "3"


def test_next_attempt_has_another_port() -> None:
    assert restart_environment(replace(member(), attempt=3))["RAY_ADDRESS"] == "train-head-0.train:29502"


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, []),
        ({"limits": {"cpu": "4"}}, ["--num-cpus=4"]),
        ({"requests": {"cpu": 2}, "limits": {"cpu": "3500m"}}, ["--num-cpus=3"]),
        ({"requests": {"cpu": "250m"}}, ["--num-cpus=1"]),
        ({"limits": {"cpu": "8", "nvidia.com/gpu": 2}}, ["--num-cpus=8", "--num-gpus=2"]),
        ({"limits": {"amd.com/gpu": "4"}}, ["--num-gpus=4"]),
        ({"limits": {"nvidia.com/mig-1g.10gb": 2, "google.com/tpu": 4}}, []),
    ],
)
def test_worker_offers_what_its_pod_may_use(resources: dict[str, Any], expected: list[str]) -> None:
    assert options(member(0, {"resources": resources}))[1:] == expected


def test_no_rank_is_named() -> None:
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK", "PET_NNODES"} & environment_of(member()).keys()


def test_use_is_not_reported_unless_the_user_wants() -> None:
    own = {"env": [{"name": "RAY_USAGE_STATS_ENABLED", "value": "1"}]}
    assert environment_of(member())["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment_of(member(1, own))["RAY_USAGE_STATS_ENABLED"] == "1"


@pytest.mark.parametrize(("grace", "drain"), [(None, "20"), (600, "590"), (5, "3"), (1, "0"), (0, "0")])
def test_deleted_pod_drains_and_then_exits(grace: int | None, drain: str) -> None:
    made = member()
    made.spec.template["spec"]["terminationGracePeriodSeconds"] = grace
    assert environment_of(made)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == drain


def test_own_address_is_kept_and_named() -> None:
    own = member(1, {"env": [{"name": "RAY_ADDRESS", "value": "elsewhere:6379"}]})
    assert environment_of(own)["RAY_ADDRESS"] == "elsewhere:6379"
    assert user_set_identity(own) == ["RAY_ADDRESS"]


def test_command_runs_once_in_each_pod() -> None:
    assert starts_ranks_itself(member(), COMMAND)


def test_only_members_with_number_0_have_names() -> None:
    assert dns_names(member().spec) is DnsNames.MASTER
