"""Members of other roles than the workers: their indexes, their names, their templates, and what decides about a job."""

from typing import Any

import pytest

from tests.support.jobs import job, spec
from trainyard.api.roles import MAX_MEMBER_INDEX, ROLES, RoleName, member_index, role_and_number
from trainyard.domain.state.object_names import parse_worker_pod, worker_pod
from trainyard.domain.state.roles import deciding, member, role_members, template_of

CHIEF, PS, PS_1, EVALUATOR, HEAD, SERVER, SCHEDULER = 10_000, 11_000, 11_001, 12_000, 13_000, 14_000, 15_000
TRAINING: dict[str, Any] = {"framework": "tensorflow", "replicas": 2}
WITH_PS: dict[str, Any] = {
    **TRAINING,
    "roles": [{"name": "ps", "replicas": 2}, {"name": "chief"}, {"name": "evaluator"}],
}


def test_indexes_of_roles_never_change() -> None:
    """Pods in a cluster have them."""
    assert [member_index(role, 0) for role in RoleName] == [CHIEF, PS, EVALUATOR, HEAD, SERVER, SCHEDULER]
    assert member_index("worker", 7) == 7
    assert max(member_index(role, 999) for role in RoleName) < MAX_MEMBER_INDEX


@pytest.mark.parametrize("index", [0, 9_999, CHIEF, PS_1, EVALUATOR])
def test_name_of_a_pod_gives_its_member(index: int) -> None:
    assert parse_worker_pod(worker_pod("my-worker-1", index, 3)) == (index, 3, 0)


def test_people_read_role_and_number() -> None:
    assert [member(3), member(CHIEF), member(PS_1)] == ["worker 3", "chief 0", "ps 1"]
    assert role_and_number(PS_1) == ("ps", 1)


def test_every_role_of_the_table_is_known() -> None:
    assert {role for framework in ROLES.values() for role in framework.names} == set(RoleName)


@pytest.mark.parametrize(
    ("fields", "members"),
    [
        pytest.param({"framework": "torch", "replicas": 3}, [0, 1, 2], id="no roles"),
        pytest.param({**TRAINING, "roles": [{"name": "chief"}]}, [0, 1, CHIEF], id="all that train"),
        pytest.param({**TRAINING, "roles": [{"name": "evaluator"}]}, [0, 1], id="not the evaluator"),
        pytest.param(WITH_PS, [CHIEF], id="the chief of parameter servers"),
        pytest.param({"framework": "ray", "replicas": 2, "roles": [{"name": "head"}]}, [HEAD], id="the head of Ray"),
        pytest.param(
            {"framework": "dmlc", "replicas": 2, "roles": [{"name": "scheduler"}, {"name": "server"}]},
            [0, 1],
            id="the workers of DMLC",
        ),
        pytest.param(
            {"framework": "flower", "replicas": 2, "roles": [{"name": "server"}]}, [SERVER], id="the server of Flower"
        ),
        pytest.param({**WITH_PS, "lifecycle": {"success": "AllWorkers"}}, [0, 1], id="all workers, as the user wants"),
        pytest.param({**WITH_PS, "lifecycle": {"success": "Worker0"}}, [0], id="worker 0, as the user wants"),
    ],
)
def test_members_that_decide(fields: dict[str, Any], members: list[int]) -> None:
    assert list(deciding(spec(**fields), fields["replicas"])) == members


def test_members_of_all_roles() -> None:
    assert role_members(spec(**WITH_PS)) == (PS, PS_1, CHIEF, EVALUATOR)
    assert job(**WITH_PS).job.members(2) == [0, 1, PS, PS_1, CHIEF, EVALUATOR]


MAIN = {
    "name": "main",
    "image": "trainer:1",
    "command": ["python3", "train.py"],
    "args": ["--steps", "9"],
    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
}
SIDECAR = {"name": "sidecar", "image": "proxy:1"}
TEMPLATE = {
    "spec": {
        "containers": [MAIN, SIDECAR],
        "nodeSelector": {"gpu": "yes"},
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
}


def merged(**fields: Any) -> Any:
    """Return the pod spec of a role with these fields."""
    made = spec(template=TEMPLATE, framework="tensorflow", roles=[{"name": "chief", **fields}])
    return template_of(made, made.roles[0])["spec"]


def test_role_without_fields_has_the_template() -> None:
    assert merged() == TEMPLATE["spec"]


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"image": "cpu:1"}, {"image": "cpu:1"}),
        ({"args": ["--steps", "1"]}, {"args": ["--steps", "1"]}),
        ({"resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "1"}}}),
        (
            {"env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
        ),
        (
            {"volumeMounts": [{"name": "logs", "mountPath": "/logs"}]},
            {"volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "logs", "mountPath": "/logs"}]},
        ),
    ],
)
def test_role_changes_the_main_container(fields: dict[str, Any], changed: dict[str, Any]) -> None:
    assert merged(**fields)["containers"] == [{**MAIN, **changed}, SIDECAR]


def test_own_command_has_no_foreign_arguments() -> None:
    without = {name: value for name, value in MAIN.items() if name != "args"}
    assert merged(command=["serve"])["containers"][0] == {**without, "command": ["serve"]}


def test_role_changes_the_pod() -> None:
    fields = {
        "nodeSelector": {"gpu": "no"},
        "tolerations": [{"key": "cpu"}],
        "affinity": {"podAffinity": {}},
        "priorityClassName": "high",
    }
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    found = merged(**fields, volumes=[volume])
    assert found.items() >= {**fields, "volumes": [volume]}.items()
