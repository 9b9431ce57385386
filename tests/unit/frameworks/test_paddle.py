"""The variables by which Paddle's programs, and its launcher, find the group."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worker_pods import container, environment_of, worker
from trainyard.api.network import DnsNames
from trainyard.frameworks.agent_wrapper import starts_ranks_itself
from trainyard.frameworks.environment import restart_environment, user_set_identity
from trainyard.frameworks.paddle import IDENTITY_VARIABLES, RANKS
from trainyard.frameworks.worker_spec import Worker, dns_names
from trainyard_agent.program import PER_RANK_VARIABLES, stable
from trainyard_agent.ranks import environments, place

GPUS = {"limits": {"nvidia.com/gpu": 2}}


def paddle_worker(*containers: Any, **fields: Any) -> Worker:
    return worker(*containers, framework="paddle", **fields)


def ranks_of(made: Worker) -> list[dict[str, str]]:
    """Return the environments that the agent gives to the processes of a worker."""
    inherited = {name: str(value) for name, value in environment_of(made).items()}
    return [*environments(place(inherited), inherited).values()]


def test_rank_finds_its_group() -> None:
    made = paddle_worker()
    expected = {
        "PADDLE_MASTER": "train-worker-0.train:12401",
        "PADDLE_TRAINER_ENDPOINTS": "train-worker-0.train:12401,train-worker-1.train:12401,train-worker-2.train:12401",
        "PADDLE_CURRENT_ENDPOINT": "train-worker-1.train:12401",
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "3",
        "PADDLE_RANK_IN_NODE": "0",
        "PADDLE_DISTRI_BACKEND": "gloo",
    }
    assert environment_of(made).items() >= expected.items()
    assert restart_environment(made).items() >= expected.items()
    assert dns_names(made.spec) is DnsNames.ALL


def test_launcher_serves_at_the_first_endpoint() -> None:
    """It compares its own address with that of the endpoint, as text."""
    made = environment_of(paddle_worker(index=0, processesPerReplica=2))
    assert made["PADDLE_TRAINER_ENDPOINTS"].startswith(f"{made['POD_IP']}:")
    expected = {"PADDLE_NNODES": "3", "PADDLE_NPROC_PER_NODE": "2", "PADDLE_RANK": "0"}
    assert made.items() >= expected.items()
    # It would take the number of a process for that of its worker.
    assert "PADDLE_TRAINER_ID" not in made


@pytest.mark.parametrize("command", [["fleetrun", "train.py"], ["python3", "-m", "paddle.distributed.launch", "x.py"]])
def test_launcher_runs_once(command: list[str]) -> None:
    made = paddle_worker(container(command=command), processesPerReplica=2)
    assert starts_ranks_itself(made, command)
    assert not starts_ranks_itself(made, ["python3", "train.py"])


def test_several_processes_have_endpoints_and_devices() -> None:
    first, second = ranks_of(paddle_worker(container(resources=GPUS)))
    names = ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_CURRENT_ENDPOINT", "FLAGS_selected_gpus")
    assert [first[name] for name in names] == ["2", "6", "train-worker-1.train:12402", "0"]
    assert [second[name] for name in names] == ["3", "6", "train-worker-1.train:12403", "1"]
    # On GPUs Paddle chooses NCCL itself.
    assert "PADDLE_DISTRI_BACKEND" not in first


def test_rank_0_of_a_group_that_keeps_pods() -> None:
    made = restart_environment(replace(paddle_worker(attempt=3), rendezvous="10.0.0.7"))
    assert made["PADDLE_MASTER"] == "10.0.0.7:12402"


def test_variable_that_paddle_prefers_is_absent() -> None:
    """The launcher and rank 0 would both listen there."""
    names = environment_of(paddle_worker()).keys()
    assert not [name for name in names if name.startswith(("MASTER_", "PET_", "TORCH_"))]


def test_user_keeps_the_last_word() -> None:
    own = [{"name": "PADDLE_DISTRI_BACKEND", "value": "auto"}, {"name": "MASTER_ADDR", "value": "mine"}]
    made = paddle_worker(container(env=own))
    assert environment_of(made).items() >= {"PADDLE_DISTRI_BACKEND": "auto", "MASTER_ADDR": "mine"}.items()
    assert user_set_identity(made) == ["MASTER_ADDR"]
    assert "FLAGS_selected_gpus" not in IDENTITY_VARIABLES


def test_warm_process_knows_what_differs() -> None:
    assert RANKS.keys() - PER_RANK_VARIABLES == {"PADDLE_LOCAL_SIZE"}
    first, later = (ranks_of(paddle_worker(attempt=number, replicas=size))[0] for number, size in ((1, 3), (2, 5)))
    assert stable(first) == stable(later)


def test_network_and_threads_of_the_container() -> None:
    made = environment_of(paddle_worker(container(resources={"requests": {"cpu": "4"}}), processesPerReplica=2))
    assert made["OMP_NUM_THREADS"] == "2"
    assert "NCCL_SOCKET_IFNAME" not in made
    assert "docker" in environment_of(paddle_worker(pod={"hostNetwork": True}))["NCCL_SOCKET_IFNAME"]
    assert "OMP_NUM_THREADS" not in environment_of(paddle_worker())
