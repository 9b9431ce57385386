"""The variables by which JAX, and programs that pass them to JAX, find the group."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worker_pods import EIGHT_GPUS, container, environment_of, worker
from trainyard.api.network import DnsNames
from trainyard.frameworks.environment import restart_environment, user_set_identity
from trainyard.frameworks.jax import IDENTITY_VARIABLES, RANKS
from trainyard.frameworks.manifests import service
from trainyard.frameworks.worker_spec import Worker, dns_names
from trainyard_agent.program import PER_RANK_VARIABLES, stable
from trainyard_agent.ranks import environments, place

Json = dict[str, Any]
TPUS: Json = {"limits": {"google.com/tpu": 4}}


def jax_worker(*containers: Json, **fields: Any) -> Worker:
    return worker(*containers, framework="jax", **fields)


def ranks_of(made: Worker) -> list[dict[str, str]]:
    """Return the environments that the agent gives to the processes of a worker."""
    given = {name: value for name, value in environment_of(made).items() if isinstance(value, str)}
    return [*environments(place(given), given).values()]


def test_jax_finds_group_by_slurm_variables() -> None:
    env = environment_of(jax_worker())
    expected = {
        "JAX_COORDINATOR_ADDRESS": "train-worker-0.train:29501",
        "SLURM_STEP_NODELIST": "train-worker-0.train",
        "SLURM_NTASKS": "3",
        "SLURM_PROCID": "1",
        "SLURM_LOCALID": "0",
    }
    assert env.items() >= expected.items()
    assert env["SLURM_JOB_ID"].isdecimal()


def test_programs_that_pass_arguments_find_their_names() -> None:
    expected = {
        "COORDINATOR_ADDRESS": "train-worker-0.train",
        "COORDINATOR_PORT": "29501",
        "NUM_PROCESSES": "3",
        "PROCESS_ID": "1",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "1",
    }
    assert environment_of(jax_worker()).items() >= expected.items()


def test_other_frameworks_see_no_slurm() -> None:
    for framework in ("torch", "deepspeed", "none"):
        assert not {name for name in environment_of(worker(framework=framework)) if name.startswith(("SLURM", "JAX"))}
    assert not environment_of(jax_worker()).keys() & {"MASTER_ADDR", "RANK", "PET_NNODES"}


def test_port_and_job_change_with_the_attempt() -> None:
    first, second = (environment_of(jax_worker(attempt=number)) for number in (1, 2))
    changed = {name for name, value in first.items() if second[name] != value}
    names = {"JAX_COORDINATOR_ADDRESS", "COORDINATOR_PORT", "SLURM_JOB_ID"}
    assert changed == {"TRAINYARD_ATTEMPT", *names}
    restarted = restart_environment(jax_worker(attempt=2))
    assert {name: restarted[name] for name in names} == {name: second[name] for name in names}


def test_address_of_a_coordinator_without_name() -> None:
    assert environment_of(jax_worker(replicas=1, index=0))["JAX_COORDINATOR_ADDRESS"] == "localhost:29501"
    by_address = replace(jax_worker(), rendezvous="fd00::7")
    assert environment_of(by_address)["JAX_COORDINATOR_ADDRESS"] == "[fd00::7]:29501"


def test_each_process_gets_its_numbers_from_the_agent() -> None:
    made = ranks_of(jax_worker(processesPerReplica=2))
    names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "JAX_PROCESS_ID", "NUM_PROCESSES")
    assert [[each[name] for name in names] for each in made] == [["2", "0", "6", "2", "6"], ["3", "1", "6", "3", "6"]]


@pytest.mark.parametrize(
    ("processes", "resources", "devices"),
    [
        ("auto", {}, [None]),
        (2, {}, [None, None]),
        (1, EIGHT_GPUS, ["0,1,2,3,4,5,6,7"]),
        ("auto", EIGHT_GPUS, ["0", "1", "2", "3", "4", "5", "6", "7"]),
        (2, EIGHT_GPUS, ["0,1,2,3", "4,5,6,7"]),
        (3, EIGHT_GPUS, [None, None, None]),
        ("auto", {"limits": {"nvidia.com/mig-1g.10gb": 3}}, ["0"]),
    ],
)
def test_accelerators_are_divided_among_processes(processes: Any, resources: Json, devices: list[str | None]) -> None:
    made = ranks_of(jax_worker(container(resources=resources), processesPerReplica=processes))
    assert [each.get("JAX_LOCAL_DEVICE_IDS") for each in made] == devices


def test_tpu_worker_knows_the_hosts_of_its_slice() -> None:
    made = jax_worker(container(resources=TPUS), container("sidecar"))
    expected = {
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "train-worker-0.train,train-worker-1.train,train-worker-2.train",
        "TPU_NAME": "train",
    }
    assert environment_of(made).items() >= expected.items()
    assert restart_environment(made).items() >= expected.items()
    assert not {name for name in environment_of(made) if name.startswith("MEGASCALE")}
    assert not {name for name in environment_of(made, 1) if name.startswith("TPU")}
    assert not {name for name in environment_of(worker(container(resources=TPUS))) if name.startswith("TPU")}


@pytest.mark.parametrize(
    ("slices", "found"),
    [
        ("2", ("1", "train-worker-2.train,train-worker-3.train", "1")),
        ("4", ("0", "train-worker-3.train", "3")),
        ("1", ("3", ",".join(f"train-worker-{number}.train" for number in range(4)), None)),
        ("3", ("3", ",".join(f"train-worker-{number}.train" for number in range(4)), None)),
        ("many", ("3", ",".join(f"train-worker-{number}.train" for number in range(4)), None)),
    ],
)
def test_tpu_slices_divide_the_workers(slices: str, found: tuple[str, str, str | None]) -> None:
    own = container(resources=TPUS, env=[{"name": "MEGASCALE_NUM_SLICES", "value": slices}])
    env = environment_of(jax_worker(own, replicas=4, index=3))
    names = ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "MEGASCALE_SLICE_ID")
    assert tuple(env.get(name) for name in names) == found
    assert ("MEGASCALE_COORDINATOR_ADDRESS" in env) == (found[2] is not None)


def test_hosts_of_a_slice_have_names() -> None:
    tpus, gpus = jax_worker(container(resources=TPUS)), jax_worker(container(resources=EIGHT_GPUS))
    assert (dns_names(tpus.spec), dns_names(gpus.spec)) == (DnsNames.ALL, DnsNames.MASTER)
    assert "trainyard.dev/index" in service(gpus.job)["spec"]["selector"]
    assert "trainyard.dev/index" not in service(tpus.job)["spec"]["selector"]
    own = jax_worker(container(resources=TPUS), network={"dnsNames": "Master"})
    assert dns_names(own.spec) is DnsNames.MASTER


def test_identity_set_by_user_is_kept_and_reported() -> None:
    own = [{"name": "JAX_COORDINATOR_ADDRESS", "value": "mine:1"}, {"name": "SLURM_NTASKS", "value": "9"}]
    made = jax_worker(container(env=own))
    env = environment_of(made)
    assert (env["JAX_COORDINATOR_ADDRESS"], env["SLURM_NTASKS"]) == ("mine:1", "9")
    assert user_set_identity(made) == ["JAX_COORDINATOR_ADDRESS", "SLURM_NTASKS"]
    assert user_set_identity(jax_worker(container(env=[{"name": "JAX_LOCAL_DEVICE_IDS", "value": "0"}]))) == []


def test_network_of_nccl_on_nodes() -> None:
    assert "NCCL_SOCKET_IFNAME" not in environment_of(jax_worker())
    assert "docker" in environment_of(jax_worker(pod={"hostNetwork": True}))["NCCL_SOCKET_IFNAME"]


def test_warm_process_serves_the_next_attempt() -> None:
    of_a_rank = IDENTITY_VARIABLES | RANKS.keys()
    assert of_a_rank - PER_RANK_VARIABLES == {"SLURM_LOCALID", "JAX_LOCAL_DEVICE_IDS", "TPU_NAME"}
    first, later = (ranks_of(jax_worker(attempt=number, replicas=size))[0] for number, size in ((1, 3), (2, 5)))
    assert first != later
    assert stable(first) == stable(later)
