"""What torchrun and torch.distributed are told."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worker_pods import EIGHT_GPUS, container, environment_of, worker
from trainyard.api.status import Group
from trainyard.frameworks.environment import restart_environment
from trainyard.frameworks.torch import rendezvous_port

UID = "job-uid"


def test_who_is_who_with_one_process_a_worker() -> None:
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


def test_a_worker_without_others_is_its_own_master() -> None:
    env = environment_of(worker(index=0, replicas=1))
    assert {env[name] for name in ("MASTER_ADDR", "PET_MASTER_ADDR", "PET_LOCAL_ADDR")} == {"localhost"}
    assert env["PET_RDZV_ENDPOINT"] == "localhost:29501"


def test_each_attempt_meets_at_a_port_of_its_own() -> None:
    ports = [rendezvous_port(worker(attempt=attempt)) for attempt in range(1, 502)]
    assert (ports[0], ports[1], max(ports), ports[-1]) == (29500, 29501, 29999, 29500)
    assert (
        rendezvous_port(worker(pod={"hostNetwork": True}, attempt=3))
        == rendezvous_port(worker(pod={"hostNetwork": True}, attempt=2)) + 2
    )


@pytest.mark.parametrize(("address", "endpoint"), [("10.1.2.3", "10.1.2.3:29501"), ("fd00::1", "[fd00::1]:29501")])
def test_where_pods_were_kept_worker_0_is_found_by_its_address(address: str, endpoint: str) -> None:
    variables = restart_environment(replace(worker(), rendezvous=address))
    assert (variables["MASTER_ADDR"], variables["PET_RDZV_ENDPOINT"]) == (address, endpoint)
    assert (variables["TRAINYARD_ATTEMPT"], variables["PET_RDZV_ID"]) == ("2", "job-uid-2")


def test_what_the_user_has_set_is_not_renewed() -> None:
    own = container(env=[{"name": "MASTER_PORT", "value": "1"}])
    assert "MASTER_PORT" not in restart_environment(worker(own))
    assert "MASTER_ADDR" in restart_environment(worker(own))


def test_ranks_of_several_processes_are_torchruns() -> None:
    env = environment_of(worker(container(resources=EIGHT_GPUS)))
    assert (env["PET_NPROC_PER_NODE"], env["PET_NNODES"], env["PET_NODE_RANK"]) == ("8", "3", "1")
    assert env.keys().isdisjoint({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})


def test_worker_0_alone_holds_the_store() -> None:
    hosts = [environment_of(worker(index=i))["PET_RDZV_CONF"].split(",")[0] for i in range(3)]
    assert hosts == ["is_host=1", "is_host=0", "is_host=0"]


def test_each_attempt_has_a_rendezvous_of_its_own() -> None:
    ids = {environment_of(worker(attempt=a))["PET_RDZV_ID"] for a in (1, 2, 3)}
    assert ids == {"job-uid-1", "job-uid-2", "job-uid-3"}


def test_tuning() -> None:
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
def test_the_flight_recorder_s_size_is_the_user_s_under_either_name(name: str) -> None:
    env = environment_of(worker(container(env=[{"name": name, "value": "0"}])))
    assert {key: value for key, value in env.items() if key.endswith("_BUFFER_SIZE")} == {name: "0"}


def test_torchrun_is_not_sent_to_remove_the_termination_log() -> None:
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
        ({"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": "4"}}, "1"),
        ({"requests": {"cpu": "two"}}, None),
        ({"requests": None}, None),
        (None, None),
    ],
)
def test_threads_share_the_cpus_among_the_processes(resources: Any, threads: str | None) -> None:
    assert environment_of(worker(container(resources=resources))).get("OMP_NUM_THREADS") == threads


class TestHostNetwork:
    made = worker(pod={"hostNetwork": True})

    def test_names_no_interface_of_a_pod_and_leaves_out_those_that_lead_nowhere(self) -> None:
        env = environment_of(self.made)
        assert env.keys().isdisjoint({"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"})
        assert env["NCCL_SOCKET_IFNAME"].startswith("^lo,docker")

    def test_has_ports_of_the_jobs_own(self) -> None:
        env = environment_of(self.made)
        chosen = rendezvous_port(self.made)
        assert 20000 <= chosen < 30000
        assert env["MASTER_PORT"] == env["PET_MASTER_PORT"] == str(chosen)
        assert env["PET_RDZV_ENDPOINT"].endswith(f":{chosen}")
        assert env["NCCL_RAS_ADDR"] == f"localhost:{chosen + 1}"
        assert chosen == rendezvous_port(worker(pod={"hostNetwork": True}, index=0))


def test_without_the_agent_torchrun_of_an_elastic_job_meets_anew_by_itself() -> None:
    made = worker(elastic={"minReplicas": 2, "maxReplicas": 6}, recovery={"agent": "none", "maxRestarts": 7}, attempt=5)
    told = environment_of(made)
    assert (told["PET_NNODES"], told["PET_MAX_RESTARTS"], told["PET_RDZV_ID"]) == ("2:6", "7", "job-uid-5")
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & told.keys(), "they change without a word of ours"
    grouped = made.job.status.model_copy(update={"group": Group(since=3)})
    later = environment_of(replace(made, job=replace(made.job, status=grouped)))
    assert (later["PET_RDZV_ID"], later["PET_RDZV_ENDPOINT"]) == ("job-uid-3", "train-worker-0.train:29502")
    agent = environment_of(worker(elastic={"maxReplicas": 6}))
    assert (agent["PET_NNODES"], agent["PET_MAX_RESTARTS"]) == ("3", "0")


def test_a_first_worker_to_which_others_come_by_themselves_has_a_name_from_the_start() -> None:
    told = environment_of(worker(index=0, replicas=1, elastic={"maxReplicas": 2}, recovery={"agent": "none"}))
    assert told["PET_LOCAL_ADDR"] == "train-worker-0.train"
    assert told["PET_RDZV_ENDPOINT"].startswith("train-worker-0.train:")
