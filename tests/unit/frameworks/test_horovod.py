"""The variables of Horovod, whose ranks meet at a store of worker 0."""

from dataclasses import replace

import pytest

from tests.support.worker_pods import container, environment_of, worker
from trainyard.api.network import DnsNames
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.frameworks.environment import restart_environment, user_set_identity
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import dns_names

ADDRESSES = ("10.0.0.7", "10.0.0.8", "10.0.0.9")
CONTRACT = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_HOSTNAME": "train-worker-1"}


def test_single_process_has_its_ranks() -> None:
    expected = {
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "3",
    }
    assert environment_of(worker(framework="horovod")).items() >= {**CONTRACT, **expected}.items()


def test_agent_numbers_several_processes() -> None:
    found = environment_of(worker(framework="horovod", processesPerReplica=2))
    assert found["TRAINYARD_RANK_VARIABLES"] == (
        "HOROVOD_RANK=rank,HOROVOD_SIZE=world-size,HOROVOD_LOCAL_RANK=local-rank,"
        "HOROVOD_LOCAL_SIZE=local-world-size,HOROVOD_CROSS_RANK=worker,HOROVOD_CROSS_SIZE=workers"
    )
    assert "HOROVOD_RANK" not in found


def test_store_is_known_once_all_run() -> None:
    made = worker(framework="horovod")
    assert not [name for name in environment_of(made) if "RENDEZVOUS" in name and name != "TRAINYARD_RENDEZVOUS"]
    known = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.7",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "29501",
        "TRAINYARD_HOROVOD_RENDEZVOUS": "10.0.0.7:29501",
    }
    assert restart_environment(replace(made, addresses=ADDRESSES)).items() >= {**CONTRACT, **known}.items()
    later = restart_environment(replace(made, addresses=ADDRESSES, attempt=3))
    assert later["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "29502"


def test_single_worker_meets_at_itself() -> None:
    found = environment_of(worker(framework="horovod", replicas=1, index=0, attempt=1))
    assert found["TRAINYARD_HOROVOD_RENDEZVOUS"] == "127.0.0.1:29500"
    assert "HOROVOD_GLOO_IFACE" not in found, "its interface is that of the loopback"


@pytest.mark.parametrize(("pod", "expected"), [({}, "eth0"), ({"hostNetwork": True}, None)])
def test_interface_is_that_of_the_pod(pod: dict[str, bool], expected: str | None) -> None:
    assert environment_of(worker(framework="horovod", pod=pod)).get("HOROVOD_GLOO_IFACE") == expected


def test_users_own_store_is_kept_with_warning() -> None:
    own = container(env=[{"name": "HOROVOD_GLOO_RENDEZVOUS_ADDR", "value": "10.9.9.9"}])
    made = replace(worker(own, framework="horovod"), addresses=ADDRESSES)
    assert environment_of(made)["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.9.9.9"
    assert "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in restart_environment(made)
    assert user_set_identity(made) == ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]


def test_command_runs_per_rank_and_agents_wait() -> None:
    made = worker(container(command=["python3", "train.py"]), framework="horovod", attempt=1)
    main = worker_pod(made, AgentImage("agent"), CoordinatorEndpoint("https://operator:8443"))["spec"]["containers"][0]
    assert main["command"][2:] == ["--", "python3", "train.py"]
    assert {"name": "TRAINYARD_RENDEZVOUS", "value": "wait"} in main["env"]
    assert dns_names(made.spec) is DnsNames.MASTER


@pytest.mark.parametrize("framework", ["torch", "mpi", "none"])
def test_other_frameworks_have_none_of_them(framework: str) -> None:
    assert not [name for name in environment_of(worker(framework=framework)) if "HOROVOD" in name]
