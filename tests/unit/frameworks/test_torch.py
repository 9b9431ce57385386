"""The variables of torchrun and torch.distributed."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worker_pods import EIGHT_GPUS, container, environment_of, worker
from trainyard.api.internal_status import Group
from trainyard.frameworks.environment import restart_environment
from trainyard.frameworks.torch import rendezvous_port

UID = "job-uid"


def test_ranks_with_one_process_a_worker() -> None:
    env = environment_of(worker())
    expected: dict[str, Any] = {
        "MASTER_ADDR": "train-worker-0.train",
        "MASTER_PORT": "29501",
        "NODE_RANK": "1",
        "RANK": "1",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "train-worker-0.train",
        "PET_MASTER_PORT": "29501",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "train-worker-0.train:29501",
        "PET_RDZV_ID": "job-uid-2",
        "PET_RDZV_CONF": "is_host=0,join_timeout=900,read_timeout=900",
        "PET_MAX_RESTARTS": "0",
        "PET_LOCAL_ADDR": "train-worker-1.train",
    }
    assert {name: env.get(name) for name in expected} == expected


def test_launcher_flags_get_the_workers_index_and_number() -> None:
    flags = "torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK train.py"
    made = worker(container(command=["sh", "-c"], args=[flags], resources=EIGHT_GPUS))
    env, restarted = environment_of(made), restart_environment(made)
    assert (env["RANK"], env["WORLD_SIZE"], restarted["RANK"], restarted["WORLD_SIZE"]) == ("1", "3", "1", "3")
    assert "LOCAL_RANK" not in env


def test_single_worker_is_its_own_master() -> None:
    env = environment_of(worker(index=0, replicas=1))
    assert {env[name] for name in ("MASTER_ADDR", "PET_MASTER_ADDR", "PET_LOCAL_ADDR")} == {"localhost"}
    assert env["PET_RDZV_ENDPOINT"] == "localhost:29501"


def test_each_attempt_has_its_own_port() -> None:
    ports = [rendezvous_port(worker(attempt=attempt)) for attempt in range(1, 502)]
    assert (ports[0], ports[1], max(ports), ports[-1]) == (29500, 29501, 29999, 29500)
    assert (
        rendezvous_port(worker(pod={"hostNetwork": True}, attempt=3))
        == rendezvous_port(worker(pod={"hostNetwork": True}, attempt=2)) + 2
    )


@pytest.mark.parametrize(("address", "endpoint"), [("10.1.2.3", "10.1.2.3:29501"), ("fd00::1", "[fd00::1]:29501")])
def test_kept_pods_reach_worker_0_by_address(address: str, endpoint: str) -> None:
    variables = restart_environment(replace(worker(), rendezvous=address))
    assert (variables["MASTER_ADDR"], variables["PET_RDZV_ENDPOINT"]) == (address, endpoint)
    assert (variables["TRAINYARD_ATTEMPT"], variables["PET_RDZV_ID"]) == ("2", "job-uid-2")


def test_users_values_are_not_changed_by_restarts() -> None:
    own = container(env=[{"name": "MASTER_PORT", "value": "1"}])
    assert "MASTER_PORT" not in restart_environment(worker(own))
    assert "MASTER_ADDR" in restart_environment(worker(own))


def test_torchrun_numbers_several_processes() -> None:
    env = environment_of(worker(container(resources=EIGHT_GPUS)))
    assert (env["PET_NPROC_PER_NODE"], env["PET_NNODES"], env["PET_NODE_RANK"]) == ("8", "3", "1")
    assert env.keys().isdisjoint({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})


def test_only_worker_0_hosts_the_store() -> None:
    hosts = [environment_of(worker(index=i))["PET_RDZV_CONF"].split(",")[0] for i in range(3)]
    assert hosts == ["is_host=1", "is_host=0", "is_host=0"]


def test_each_attempt_has_its_own_rendezvous() -> None:
    ids = {environment_of(worker(attempt=a))["PET_RDZV_ID"] for a in (1, 2, 3)}
    assert ids == {"job-uid-1", "job-uid-2", "job-uid-3"}


def test_tuning_variables() -> None:
    env = environment_of(worker())
    expected = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "NCCL_DEBUG": "WARN",
        "GLOO_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
    }
    assert {name: env.get(name) for name in expected} == expected
    assert env.keys().isdisjoint({"OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "NCCL_RAS_ADDR"})


@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_flight_recorder_size_of_user_is_kept(name: str) -> None:
    env = environment_of(worker(container(env=[{"name": name, "value": "0"}])))
    assert {key: value for key, value in env.items() if key.endswith("_BUFFER_SIZE")} == {name: "0"}


def test_torchelastic_error_file_is_not_set() -> None:
    assert "TORCHELASTIC_ERROR_FILE" not in environment_of(worker())


@pytest.mark.parametrize(
    ("resources", "threads"),
    [
        ({"requests": {"cpu": "6"}}, "6"),
        ({"requests": {"cpu": 6}}, "6"),
        ({"requests": {"cpu": "6500m"}}, "6"),
        ({"requests": {"cpu": "200m"}}, "1"),
        ({"limits": {"cpu": "4"}}, "4"),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}, "2"),
        (EIGHT_GPUS, "8"),
        ({"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": "192"}}, "8"),
        # On CPUs, each core counts.
        ({"requests": {"cpu": "192"}}, "192"),
        ({"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": "4"}}, "1"),
        ({"requests": {"cpu": "two"}}, None),
        ({"requests": None}, None),
        (None, None),
    ],
)
def test_threads_divide_the_cpus(resources: Any, threads: str | None) -> None:
    assert environment_of(worker(container(resources=resources))).get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(("cpus", "processes"), [("192", "24"), ("512", "32"), ("4", "1"), (None, None)])
def test_compilers_of_all_ranks_share_the_cpus(cpus: str | None, processes: str | None) -> None:
    resources = {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": cpus} if cpus else {}}
    env = environment_of(worker(container(resources=resources)))
    assert env.get("TORCHINDUCTOR_COMPILE_THREADS") == processes


class TestHostNetwork:
    made = worker(pod={"hostNetwork": True})

    def test_excludes_virtual_interfaces(self) -> None:
        env = environment_of(self.made)
        assert env.keys().isdisjoint({"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"})
        assert env["NCCL_SOCKET_IFNAME"].startswith("^lo,docker")

    def test_uses_ports_derived_from_the_job(self) -> None:
        env = environment_of(self.made)
        chosen = rendezvous_port(self.made)
        assert 20000 <= chosen < 30000
        assert env["MASTER_PORT"] == env["PET_MASTER_PORT"] == str(chosen)
        assert env["PET_RDZV_ENDPOINT"].endswith(f":{chosen}")
        assert env["NCCL_RAS_ADDR"] == f"localhost:{chosen + 1}"
        assert chosen == rendezvous_port(worker(pod={"hostNetwork": True}, index=0))


def test_elastic_job_without_agent_rendezvous_by_torchrun() -> None:
    made = worker(elastic={"minReplicas": 2, "maxReplicas": 6}, recovery={"agent": "none", "maxRestarts": 7}, attempt=5)
    variables = environment_of(made)
    assert (variables["PET_NNODES"], variables["PET_MAX_RESTARTS"], variables["PET_RDZV_ID"]) == (
        "2:6",
        "7",
        "job-uid-5",
    )
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & variables.keys(), "they change without a word of ours"
    grouped = made.job.status.evolve(group=Group(created_in_attempt=3))
    later = environment_of(replace(made, job=replace(made.job, status=grouped)))
    assert (later["PET_RDZV_ID"], later["PET_RDZV_ENDPOINT"]) == ("job-uid-3", "train-worker-0.train:29502")
    agent = environment_of(worker(elastic={"maxReplicas": 6}))
    assert (agent["PET_NNODES"], agent["PET_MAX_RESTARTS"]) == ("3", "0")


def test_single_worker_of_torchrun_has_dns_name() -> None:
    variables = environment_of(worker(index=0, replicas=1, elastic={"maxReplicas": 2}, recovery={"agent": "none"}))
    assert variables["PET_LOCAL_ADDR"] == "train-worker-0.train"
    assert variables["PET_RDZV_ENDPOINT"].startswith("train-worker-0.train:")
