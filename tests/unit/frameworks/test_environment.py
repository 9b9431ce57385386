"""A value of the user always wins, and no name appears twice."""

from dataclasses import replace

import pytest

from tests.support.worker_pods import EIGHT_GPUS, Json, container, environment_of, worker
from trainyard.api.spec import Framework
from trainyard.frameworks import environment
from trainyard.frameworks.environment import FRAMEWORK_ENVIRONMENTS, restart_environment, user_set_identity
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.rank_numbers import RankNumber
from trainyard_agent.ranks import rank_variables

COMMON = {
    "TRAINYARD_JOB_NAME": "train",
    "TRAINYARD_JOB_UID": "job-uid",
    "TRAINYARD_ATTEMPT": "2",
    "TRAINYARD_REPLICAS": "3",
    "TRAINYARD_REPLICA_INDEX": "1",
    "TRAINYARD_PROCESSES_PER_REPLICA": "1",
}


@pytest.mark.parametrize("framework", [*Framework])
def test_variables_of_every_worker(framework: str) -> None:
    assert environment_of(worker(framework=framework)).items() >= COMMON.items()


def test_framework_none_has_no_other_variables() -> None:
    assert environment_of(worker(framework="none")) == COMMON


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, '{"tensor":1,"pipeline":1,"context":1}'),
        ({"context": 4, "tensor": 8}, '{"tensor":8,"pipeline":1,"context":4}'),
    ],
)
@pytest.mark.parametrize("framework", [*Framework])
def test_parallelism_is_passed_where_given(framework: str, given: Json, text: str) -> None:
    made = worker(framework=framework, parallelism=given)
    assert environment_of(made)["TRAINYARD_PARALLELISM"] == restart_environment(made)["TRAINYARD_PARALLELISM"] == text


def test_previous_world_size_is_passed() -> None:
    made = worker(framework="none", processesPerReplica=4)
    assert "TRAINYARD_PREVIOUS_WORLD_SIZE" not in environment_of(made)
    job = replace(made.job, status=made.job.status.evolve(previous_size=2))
    later = replace(made, job=job)
    assert environment_of(later)["TRAINYARD_PREVIOUS_WORLD_SIZE"] == "8"
    assert restart_environment(later)["TRAINYARD_PREVIOUS_WORLD_SIZE"] == "8"


def test_parallelism_is_absent_where_not_given() -> None:
    made = worker()
    assert "TRAINYARD_PARALLELISM" not in environment_of(made).keys() | restart_environment(made).keys()


def test_only_the_main_container_gets_its_accelerators() -> None:
    name = "TRAINYARD_ACCELERATORS_PER_REPLICA"
    made = worker(container(resources=EIGHT_GPUS), container("sidecar"))
    assert environment_of(made)[name] == restart_environment(made)[name] == "8"
    assert name not in environment_of(made, 1)
    assert restart_environment(worker())[name] == "", "a pod may have been created with them"
    own = container(resources=EIGHT_GPUS, env=[{"name": name, "value": "0"}])
    assert environment_of(worker(own))[name] == "0"


@pytest.mark.parametrize("seconds", [0, 90])
def test_hang_timeout_is_passed_where_set(seconds: int) -> None:
    variables = environment_of(worker(framework="none", recovery={"hangTimeoutSeconds": seconds}))
    assert variables == {**COMMON, "TRAINYARD_HANG_TIMEOUT_SECONDS": str(seconds)}


@pytest.mark.parametrize(
    ("grace", "variables"), [(None, {}), (30, {}), (120, {"TRAINYARD_GRACE_PERIOD_SECONDS": "120"})]
)
def test_grace_period_is_passed_where_not_default(grace: int | None, variables: dict[str, str]) -> None:
    made = worker(framework="none")
    made.spec.template["spec"]["terminationGracePeriodSeconds"] = grace
    assert environment_of(made) == COMMON | variables


@pytest.mark.parametrize(("grace", "least"), [(-5, "0"), (10**18, str(366 * 24 * 3600))])
def test_absurd_grace_period_is_clamped(grace: int, least: str) -> None:
    made = worker(framework="none")
    made.spec.template["spec"]["terminationGracePeriodSeconds"] = grace
    assert environment_of(made)["TRAINYARD_GRACE_PERIOD_SECONDS"] == least


@pytest.mark.parametrize(
    "name", ["HANG_TIMEOUT_SECONDS", "GRACE_PERIOD_SECONDS", "RESTART_GRACE_SECONDS", "WARM_START", "HIDDEN_FAILURES"]
)
def test_removed_setting_is_cleared_in_existing_pods(name: str) -> None:
    setting = f"TRAINYARD_{name}"
    made = worker(
        framework="none",
        recovery={"hangTimeoutSeconds": 5, "restartGraceSeconds": 9, "warmStart": False, "hiddenFailures": "Fail"},
    )
    made.spec.template["spec"]["terminationGracePeriodSeconds"] = 120
    assert restart_environment(made)[setting] == environment_of(made)[setting] != ""
    assert restart_environment(worker(framework="none"))[setting] == ""
    own = container(env=[{"name": setting, "value": "1"}])
    assert setting not in restart_environment(worker(own, framework="none"))


@pytest.mark.parametrize(
    "name",
    ["RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "NCCL_DEBUG", "TRAINYARD_ATTEMPT", "TRAINYARD_PARALLELISM", "MINE"],
)
def test_value_of_user_is_kept(name: str) -> None:
    main = container(env=[{"name": name, "value": "mine"}], resources={"limits": {"cpu": "2"}})
    assert environment_of(worker(main, parallelism={}))[name] == "mine"


def test_value_from_of_user_is_kept() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    assert environment_of(worker(container(env=[{"name": "RANK", "valueFrom": source}])))["RANK"] == source


def test_last_duplicate_of_the_user_counts() -> None:
    twice = [{"name": "RANK", "value": "8"}, {"name": "A", "value": "a"}, {"name": "RANK", "value": "9"}]
    assert environment_of(worker(container(env=twice)))["RANK"] == "9"


def test_variables_of_user_come_last() -> None:
    env = environment_of(worker(container(env=[{"name": "OUT", "value": "/out/$(RANK)"}])))
    assert list(env)[-1] == "OUT"


def test_env_from_disables_tuning_variables() -> None:
    env = environment_of(worker(container(envFrom=[{"configMapRef": {"name": "c"}}])))
    assert env["RANK"] == "1"
    assert env.keys().isdisjoint({"NCCL_DEBUG", "PYTHONUNBUFFERED"})


def test_sidecars_get_the_variables() -> None:
    made = worker(container(), container("sidecar", env=[{"name": "RANK", "value": "x"}]))
    assert environment_of(made, 0)["RANK"] == "1"
    assert environment_of(made, 1)["RANK"] == "x"
    assert environment_of(made, 1)["WORLD_SIZE"] == "3"


def test_init_containers_get_identity_alone() -> None:
    own = [{"name": "TRAINYARD_REPLICA_INDEX", "value": "mine"}, {"name": "OUT", "value": "/out/$(RANK)"}]
    sidecar = container("logs", restartPolicy="Always", env=own)
    made = worker(container(), pod={"initContainers": [container("fetch"), sidecar]})
    fetch, logs = ({v["name"]: v["value"] for v in c["env"]} for c in worker_pod(made)["spec"]["initContainers"])
    identity = {"TRAINYARD_JOB_NAME": "train", "TRAINYARD_ATTEMPT": "2", "TRAINYARD_REPLICA_INDEX": "1", "RANK": "1"}
    assert fetch.items() >= identity.items()
    assert fetch.keys().isdisjoint({"NCCL_DEBUG", "PYTHONUNBUFFERED"})
    assert logs.items() >= {**identity, "TRAINYARD_REPLICA_INDEX": "mine", "OUT": "/out/$(RANK)"}.items()
    assert list(logs)[-1] == "OUT"


def test_threads_follow_the_resources_of_the_pod() -> None:
    shared = {"resources": {"requests": {"cpu": "16"}}}
    assert environment_of(worker(container(), pod=shared, processesPerReplica=4))["OMP_NUM_THREADS"] == "4"
    own = container(resources={"requests": {"cpu": "8"}})
    assert environment_of(worker(own, pod=shared))["OMP_NUM_THREADS"] == "8"


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
def test_identity_variables_set_by_user(containers: list[Json], framework: str, names: list[str]) -> None:
    assert user_set_identity(worker(*containers, framework=framework)) == names


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (1, {"X_ID": "1", "X_COUNT": "3", "X_LOCAL": "0"}),
        (4, {"TRAINYARD_RANK_VARIABLES": "X_ID=rank,X_COUNT=world-size,X_LOCAL=local-rank"}),
    ],
)
def test_rank_variables_of_a_framework(
    monkeypatch: pytest.MonkeyPatch, processes: int, expected: dict[str, str]
) -> None:
    ranks = {"X_ID": RankNumber.RANK, "X_COUNT": RankNumber.WORLD_SIZE, "X_LOCAL": RankNumber.LOCAL_RANK}
    none = FRAMEWORK_ENVIRONMENTS[Framework.NONE]
    monkeypatch.setattr(environment, "FRAMEWORK_ENVIRONMENTS", {Framework.NONE: replace(none, ranks=ranks)})
    made = worker(framework="none", processesPerReplica=processes)
    changed = COMMON | expected | {"TRAINYARD_PROCESSES_PER_REPLICA": str(processes)}
    assert environment_of(made) == changed
    assert restart_environment(made).items() >= changed.items()


def test_agent_knows_all_rank_numbers() -> None:
    setting = ",".join(f"X={number}" for number in RankNumber)
    assert rank_variables({"TRAINYARD_RANK_VARIABLES": setting}) == {"X": [*RankNumber][-1]}
