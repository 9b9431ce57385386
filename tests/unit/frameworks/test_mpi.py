"""The variables of MPI jobs, and how their command runs."""

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


def test_agents_find_each_other_once_all_run() -> None:
    made = worker(framework="mpi", processesPerReplica=2)
    static = {"TRAINYARD_WORKER_NAME": "train-worker-{index}.train", "TRAINYARD_REMOTE_START_PORT": "29600"}
    at_creation = environment_of(made)
    assert at_creation.items() >= static.items()
    assert at_creation.keys().isdisjoint({"TRAINYARD_WORKER_ADDRESSES", "RANK", "MASTER_ADDR"})
    known = {**static, "TRAINYARD_WORKER_ADDRESSES": "10.0.0.7,10.0.0.8,10.0.0.9"}
    assert restart_environment(replace(made, addresses=ADDRESSES)).items() >= known.items()


def test_worker_name_has_one_field() -> None:
    """Also where the name of the job ends with the index of a worker."""
    made = worker(framework="mpi", replicas=12, index=1)
    named = replace(made, job=replace(made.job, name="run-1"))
    assert environment_of(named)["TRAINYARD_WORKER_NAME"] == "run-1-worker-{index}.run-1"
    alone = worker(framework="mpi", replicas=1, index=0, attempt=1)
    assert "TRAINYARD_WORKER_ADDRESSES" not in environment_of(alone)


def test_ranks_are_not_bound_to_cores() -> None:
    found = environment_of(worker(framework="mpi"))
    assert found["PRTE_MCA_hwloc_default_binding_policy"] == "none"
    assert found["I_MPI_PIN"] == "0"


@pytest.mark.parametrize("command", [["mpirun", "python3", "t.py"], ["python3", "t.py"], ["./simulation"]])
def test_command_runs_once_and_waits(command: list[str]) -> None:
    made = worker(container(command=command), framework="mpi")
    pod = worker_pod(made, AgentImage("agent"), CoordinatorEndpoint("https://operator:8443"))
    main = pod["spec"]["containers"][0]
    assert main["command"][2:] == ["--once", "--", *command]
    assert {"name": "TRAINYARD_RENDEZVOUS", "value": "wait"} in main["env"]


def test_all_workers_have_names() -> None:
    assert dns_names(worker(framework="mpi").spec) is DnsNames.ALL
    assert dns_names(worker(framework="mpi", network={"dnsNames": "Master"}).spec) is DnsNames.MASTER


def test_own_hosts_and_schedulers_cause_a_warning() -> None:
    variables = [
        {"name": name, "value": "x"} for name in ("SLURM_JOB_ID", "PRTE_MCA_prte_default_hostfile", "OMP_NUM_THREADS")
    ]
    made = worker(container(env=variables), framework="mpi")
    assert user_set_identity(made) == ["PRTE_MCA_prte_default_hostfile", "SLURM_JOB_ID"]
