"""The variables by which the members of a DMLC parameter server find each other."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worker_pods import container, environment_of, worker
from trainyard.api.network import DnsNames
from trainyard.api.spec import Framework
from trainyard.frameworks.environment import restart_environment, user_set_identity
from trainyard.frameworks.manifests import service
from trainyard.frameworks.worker_spec import Worker, dns_names

SERVER_1, SCHEDULER = 14_001, 15_000
ROLES = [{"name": "scheduler"}, {"name": "server", "replicas": 2}]


def member(index: int = 1, *containers: dict[str, Any], **fields: Any) -> Worker:
    """Return a member as the operator makes it."""
    made = worker(*containers, index=index, **{"framework": "dmlc", "roles": ROLES, **fields})
    return replace(made, job=made.job.of_member(index))


def dmlc(made: Worker) -> dict[str, str]:
    return {name: value for name, value in environment_of(made).items() if name.startswith("DMLC_")}


@pytest.mark.parametrize(
    ("index", "own"),
    [
        (1, {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "1"}),
        (SERVER_1, {"DMLC_ROLE": "server"}),
        (SCHEDULER, {"DMLC_ROLE": "scheduler"}),
    ],
)
def test_all_members_find_the_scheduler(index: int, own: dict[str, str]) -> None:
    shared = {
        "DMLC_PS_ROOT_URI": "train-scheduler-0.train",
        "DMLC_PS_ROOT_PORT": "29501",
        "DMLC_NUM_WORKER": "3",
        "DMLC_NUM_SERVER": "2",
        "DMLC_USE_KUBERNETES": "1",
    }
    made = member(index)
    assert dmlc(made) == {**shared, **own}
    assert restart_environment(made).items() >= {**shared, **own}.items()


def test_next_attempt_has_another_port_and_size() -> None:
    later = restart_environment(replace(member(), attempt=3, workers=5))
    assert (later["DMLC_PS_ROOT_PORT"], later["DMLC_NUM_WORKER"]) == ("29502", "5")


def test_single_worker_needs_scheduler_and_servers_too() -> None:
    made = dmlc(member(0, replicas=1))
    assert (made["DMLC_PS_ROOT_URI"], made["DMLC_NUM_WORKER"]) == ("train-scheduler-0.train", "1")


def test_scheduler_alone_has_a_name() -> None:
    made = member()
    assert dns_names(made.spec) is DnsNames.MASTER
    assert service(made.job)["spec"]["selector"]["trainyard.dev/index"] == "0"


def test_one_process_drives_all_accelerators() -> None:
    made = member(0, container(resources={"limits": {"nvidia.com/gpu": 8}}))
    assert made.job.processes == 1


def test_nothing_is_imported_in_advance() -> None:
    """The import of MXNet on a server does not return: it serves, at the port of another attempt."""
    for framework, expected in ((Framework.DMLC, "0"), (Framework.TENSORFLOW, None)):
        made = member(framework=framework, roles=ROLES if framework is Framework.DMLC else [])
        assert environment_of(made).get("TRAINYARD_WARM_START") == expected


def test_threads_are_those_of_the_container() -> None:
    assert environment_of(member(0, container(resources={"requests": {"cpu": "4"}})))["OMP_NUM_THREADS"] == "4"
    assert "OMP_NUM_THREADS" not in environment_of(member())


def test_user_keeps_the_last_word() -> None:
    made = member(0, container(env=[{"name": "DMLC_NUM_SERVER", "value": "9"}]))
    assert environment_of(made)["DMLC_NUM_SERVER"] == "9"
    assert user_set_identity(made) == ["DMLC_NUM_SERVER"]


def test_other_frameworks_variables_are_absent() -> None:
    names = environment_of(member()).keys()
    assert not [name for name in names if name.startswith(("PET_", "NCCL_", "MASTER_", "RANK", "PADDLE_"))]
