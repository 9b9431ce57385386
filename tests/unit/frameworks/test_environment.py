"""The user's own value always wins, and nothing appears twice."""

from dataclasses import replace

import pytest

from tests.unit.frameworks.building import Json, container, environment_of, worker
from trainyard.frameworks.environment import renewed, set_by_hand
from trainyard.frameworks.manifests import worker_pod

COMMON = {
    "TRAINYARD_JOB_NAME": "train",
    "TRAINYARD_JOB_UID": "job-uid",
    "TRAINYARD_ATTEMPT": "2",
    "TRAINYARD_REPLICAS": "3",
    "TRAINYARD_REPLICA_INDEX": "1",
    "TRAINYARD_PROCESSES_PER_REPLICA": "1",
}


@pytest.mark.parametrize("framework", ["torch", "none"])
def test_what_every_worker_is_told(framework: str) -> None:
    assert environment_of(worker(framework=framework)).items() >= COMMON.items()


def test_framework_none_is_told_nothing_else() -> None:
    assert environment_of(worker(framework="none")) == COMMON


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, '{"tensor":1,"pipeline":1,"context":1}'),
        ({"context": 4, "tensor": 8}, '{"tensor":8,"pipeline":1,"context":4}'),
    ],
)
@pytest.mark.parametrize("framework", ["torch", "none"])
def test_parallelism_is_told_where_it_is_given(framework: str, given: Json, text: str) -> None:
    made = worker(framework=framework, parallelism=given)
    assert environment_of(made)["TRAINYARD_PARALLELISM"] == renewed(made)["TRAINYARD_PARALLELISM"] == text


def test_the_size_of_the_attempt_before_is_told_in_every_later_one() -> None:
    made = worker(framework="none", processesPerReplica=4)
    assert "TRAINYARD_PREVIOUS_WORLD_SIZE" not in environment_of(made)
    job = replace(made.job, status=made.job.status.evolve(previous_size=2))
    later = replace(made, job=job)
    assert environment_of(later)["TRAINYARD_PREVIOUS_WORLD_SIZE"] == "8"
    assert renewed(later)["TRAINYARD_PREVIOUS_WORLD_SIZE"] == "8"


def test_parallelism_that_is_not_given_is_no_variable_in_any_attempt() -> None:
    made = worker()
    assert "TRAINYARD_PARALLELISM" not in environment_of(made).keys() | renewed(made).keys()


@pytest.mark.parametrize("seconds", [0, 90])
def test_how_long_a_step_may_take_is_told_where_it_is_set(seconds: int) -> None:
    told = environment_of(worker(framework="none", recovery={"hangTimeoutSeconds": seconds}))
    assert told == {**COMMON, "TRAINYARD_HANG_TIMEOUT_SECONDS": str(seconds)}


@pytest.mark.parametrize(("grace", "told"), [(None, {}), (30, {}), (120, {"TRAINYARD_GRACE_PERIOD_SECONDS": "120"})])
def test_how_long_the_pod_gets_to_end_is_told_where_it_is_not_usual(grace: int | None, told: dict[str, str]) -> None:
    made = worker(framework="none")
    made.spec.template["spec"]["terminationGracePeriodSeconds"] = grace
    assert environment_of(made) == COMMON | told


@pytest.mark.parametrize(("grace", "least"), [(-5, "0"), (10**18, str(366 * 24 * 3600))])
def test_a_grace_that_makes_no_sense_is_told_as_one_that_does(grace: int, least: str) -> None:
    made = worker(framework="none")
    made.spec.template["spec"]["terminationGracePeriodSeconds"] = grace
    assert environment_of(made)["TRAINYARD_GRACE_PERIOD_SECONDS"] == least


@pytest.mark.parametrize("name", ["HANG_TIMEOUT_SECONDS", "GRACE_PERIOD_SECONDS", "WARM_START"])
def test_a_setting_that_is_taken_back_is_told_to_workers_that_kept_their_pods(name: str) -> None:
    setting = f"TRAINYARD_{name}"
    made = worker(framework="none", recovery={"hangTimeoutSeconds": 5, "warmStart": False})
    made.spec.template["spec"]["terminationGracePeriodSeconds"] = 120
    assert renewed(made)[setting] == environment_of(made)[setting] != ""
    assert renewed(worker(framework="none"))[setting] == ""
    own = container(env=[{"name": setting, "value": "1"}])
    assert setting not in renewed(worker(own, framework="none"))


@pytest.mark.parametrize(
    "name",
    ["RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "NCCL_DEBUG", "TRAINYARD_ATTEMPT", "TRAINYARD_PARALLELISM", "MINE"],
)
def test_value_of_the_user_is_kept(name: str) -> None:
    main = container(env=[{"name": name, "value": "mine"}], resources={"limits": {"cpu": "2"}})
    assert environment_of(worker(main, parallelism={}))[name] == "mine"


def test_value_of_the_user_may_come_from_elsewhere() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    assert environment_of(worker(container(env=[{"name": "RANK", "valueFrom": source}])))["RANK"] == source


def test_what_the_user_says_twice_is_said_once_as_it_was_said_last() -> None:
    twice = [{"name": "RANK", "value": "8"}, {"name": "A", "value": "a"}, {"name": "RANK", "value": "9"}]
    assert environment_of(worker(container(env=twice)))["RANK"] == "9"


def test_ours_stands_first_so_that_the_users_can_refer_to_it() -> None:
    env = environment_of(worker(container(env=[{"name": "OUT", "value": "/out/$(RANK)"}])))
    assert list(env)[-1] == "OUT"


def test_with_env_from_who_is_who_is_told_and_tuning_is_left_to_it() -> None:
    env = environment_of(worker(container(envFrom=[{"configMapRef": {"name": "c"}}])))
    assert env["RANK"] == "1"
    assert env.keys().isdisjoint({"NCCL_DEBUG", "PYTHONUNBUFFERED"})


def test_every_container_is_told_and_init_containers_are_left_alone() -> None:
    made = worker(
        container(),
        container("sidecar", env=[{"name": "RANK", "value": "x"}]),
        pod={"initContainers": [container("i")]},
    )
    assert environment_of(made, 0)["RANK"] == "1"
    assert environment_of(made, 1)["RANK"] == "x"
    assert environment_of(made, 1)["WORLD_SIZE"] == "3"
    (init,) = worker_pod(made)["spec"]["initContainers"]
    assert init == container("i") | {"terminationMessagePolicy": "FallbackToLogsOnError"}


@pytest.mark.parametrize(
    ("containers", "framework", "names"),
    [
        ([container()], "torch", []),
        ([container(env=None)], "torch", []),
        ([container(env=[{"name": "NCCL_DEBUG", "value": "INFO"}])], "torch", []),
        ([container(env=[{"name": "RANK", "value": "0"}])], "torch", ["RANK"]),
        ([container(env=[{"name": "RANK", "value": "0"}])], "none", []),
        (
            [container(env=[{"name": "WORLD_SIZE"}, {"name": "RANK"}]), container("b", env=[{"name": "RANK"}])],
            "torch",
            ["RANK", "WORLD_SIZE"],
        ),
    ],
)
def test_variables_that_are_worth_a_warning(containers: list[Json], framework: str, names: list[str]) -> None:
    assert set_by_hand(worker(*containers, framework=framework)) == names
