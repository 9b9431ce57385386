"""`TF_CONFIG` of all members, in both ways in which TensorFlow distributes a training."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.worker_pods import environment_of, worker
from trainyard.frameworks.environment import restart_environment, user_set_identity
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import Worker

CHIEF, PS, PS_1, EVALUATOR = 10_000, 11_000, 11_001, 12_000
ROLES = [
    {"name": "chief"},
    {"name": "ps", "replicas": 2},
    {"name": "evaluator", "env": [{"name": "WHO", "value": "me"}]},
]


def member(index: int = 1, **fields: Any) -> Worker:
    """Return a member as the operator makes it."""
    made = worker(index=index, framework="tensorflow", **fields)
    return replace(made, job=made.job.of_member(index))


def config(made: Worker) -> Any:
    return json.loads(environment_of(made)["TF_CONFIG"])


def addresses(role: str, number: int) -> list[str]:
    return [f"train-{role}-{index}.train:29501" for index in range(number)]


def test_workers_alone() -> None:
    assert config(member()) == {"cluster": {"worker": addresses("worker", 3)}, "task": {"type": "worker", "index": 1}}


@pytest.mark.parametrize(
    ("index", "role", "number"),
    [(2, "worker", 2), (CHIEF, "chief", 0), (PS_1, "ps", 1), (EVALUATOR, "evaluator", 0)],
)
def test_members_of_all_roles_know_one_cluster(index: int, role: str, number: int) -> None:
    made = member(index, roles=ROLES)
    cluster = {"chief": addresses("chief", 1), "ps": addresses("ps", 2), "worker": addresses("worker", 3)}
    assert config(made) == {"cluster": cluster, "task": {"type": role, "index": number}}
    assert restart_environment(made)["TF_CONFIG"] == environment_of(made)["TF_CONFIG"]


def test_single_worker_trains_without_a_cluster() -> None:
    made = replace(member(0, replicas=1), workers=1)
    assert "TF_CONFIG" not in environment_of(made)


def test_next_attempt_has_another_port() -> None:
    assert config(member(attempt=3))["cluster"]["worker"][0] == "train-worker-0.train:29502"


def test_user_config_stays_and_is_reported() -> None:
    own = {"name": "main", "image": "trainer:1", "env": [{"name": "TF_CONFIG", "value": "{}"}]}
    made = worker(own, framework="tensorflow")
    assert environment_of(made)["TF_CONFIG"] == "{}"
    assert user_set_identity(made) == ["TF_CONFIG"]


def test_pod_of_a_role() -> None:
    pod = worker_pod(member(PS_1, roles=ROLES))
    assert (pod["metadata"]["name"], pod["spec"]["hostname"]) == ("train-ps-1-2", "train-ps-1")
    labels = pod["metadata"]["labels"]
    assert (labels["trainyard.dev/role"], labels["trainyard.dev/index"]) == ("ps", "1")
    assert pod["metadata"]["annotations"]["trainyard.dev/template-hash"] == member(0, roles=ROLES).job.template_hash


def test_variables_of_a_role() -> None:
    variables = environment_of(member(EVALUATOR, roles=ROLES))
    expected = {"TRAINYARD_ROLE": "evaluator", "TRAINYARD_REPLICA_INDEX": "0", "TRAINYARD_REPLICAS": "1", "WHO": "me"}
    assert variables.items() >= expected.items()
    assert environment_of(member(PS_1, roles=ROLES))["TRAINYARD_REPLICAS"] == "2"
    assert "TRAINYARD_ROLE" not in environment_of(member())


@pytest.mark.parametrize(("cpus", "threads"), [("8", "8"), ("250m", "1")])
def test_threads_are_those_of_the_container(cpus: str, threads: str) -> None:
    """Parameter servers and workers with one thread between operations wait for each other for ever."""
    made = member(roles=[{"name": "chief", "resources": {"requests": {"cpu": cpus}}}], index=CHIEF)
    found = environment_of(made)
    assert (found["TF_NUM_INTRAOP_THREADS"], found["TF_NUM_INTEROP_THREADS"]) == (threads, "2")


def test_one_process_drives_all_accelerators() -> None:
    gpus = {"name": "main", "image": "trainer:1", "resources": {"limits": {"nvidia.com/gpu": 8}}}
    assert member(0, template={"spec": {"containers": [gpus]}}).job.processes == 1
