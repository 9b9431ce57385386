"""The environment of a worker's containers. A value of the user replaces Trainyard's, and no name appears twice.
Pure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.api.constants import ENV_JOB_UID
from trainyard.api.recovery import HiddenFailures
from trainyard.api.spec import DEFAULT_GRACE_SECONDS, Framework
from trainyard.frameworks import boosting, dmlc, flower, horovod, jax, megatron, mpi, paddle, ray, tensorflow, torch
from trainyard.frameworks.preflight import PREFLIGHT, preflight_variables
from trainyard.frameworks.rank_numbers import RankNumber
from trainyard.frameworks.worker_spec import Json, Worker

GROUP_RANK = "TRAINYARD_GROUP_RANK"
"""The place of a worker in the order of ranks, where that is not its index."""
SETTINGS = (
    "TRAINYARD_WARM_START",
    "TRAINYARD_HIDDEN_FAILURES",
    "TRAINYARD_HANG_TIMEOUT_SECONDS",
    "TRAINYARD_GRACE_PERIOD_SECONDS",
    "TRAINYARD_RESTART_GRACE_SECONDS",
    "TRAINYARD_ACCELERATORS_PER_REPLICA",
    PREFLIGHT,
    GROUP_RANK,
)
"""Variables that are set only where they differ from the default. An empty value means that they are not set."""


@dataclass(frozen=True, slots=True)
class FrameworkEnvironment:
    """The variables that a framework needs."""

    identity: Callable[[Worker], list[Json]]
    """Rendezvous, and ranks where the framework is torch: the group does not work without them."""
    tuning: Callable[[Worker, Mapping[str, Any]], list[Json]]
    """Settings that help, for one container."""
    reserved: frozenset[str]
    """Variables that users rarely mean to set themselves."""
    ranks: Mapping[str, RankNumber] = field(default_factory=dict)
    """Variables that differ between the processes of a worker, and the number that each holds."""
    devices: Callable[[Worker, Mapping[str, Any]], list[Json]] = lambda _worker, _container: []
    """Identity variables of one container, by the accelerators that it requests."""


_RANKS = {
    "RANK": RankNumber.RANK,
    "WORLD_SIZE": RankNumber.WORLD_SIZE,
    "LOCAL_RANK": RankNumber.LOCAL_RANK,
    "LOCAL_WORLD_SIZE": RankNumber.LOCAL_WORLD_SIZE,
}
"""What programs of most frameworks look for."""
_TORCH = FrameworkEnvironment(torch.identity_variables, torch.tuning_variables, torch.IDENTITY_VARIABLES)
FRAMEWORK_ENVIRONMENTS: Mapping[Framework, FrameworkEnvironment] = {
    Framework.TORCH: _TORCH,
    # The agent starts the ranks of its launcher.
    Framework.DEEPSPEED: _TORCH,
    Framework.MEGATRON: FrameworkEnvironment(
        torch.identity_variables, megatron.tuning_variables, torch.IDENTITY_VARIABLES
    ),
    Framework.JAX: FrameworkEnvironment(
        jax.identity_variables, jax.tuning_variables, jax.IDENTITY_VARIABLES, jax.RANKS, jax.device_variables
    ),
    Framework.XGBOOST: FrameworkEnvironment(
        boosting.xgboost_variables,
        boosting.tuning_variables,
        boosting.XGBOOST_RESERVED,
        {**_RANKS, "DMLC_TASK_ID": RankNumber.RANK, "DMLC_NUM_WORKER": RankNumber.WORLD_SIZE},
    ),
    Framework.LIGHTGBM: FrameworkEnvironment(
        boosting.lightgbm_variables, boosting.tuning_variables, boosting.LIGHTGBM_RESERVED, _RANKS
    ),
    Framework.TENSORFLOW: FrameworkEnvironment(
        tensorflow.identity_variables, tensorflow.tuning_variables, tensorflow.IDENTITY_VARIABLES
    ),
    Framework.MPI: FrameworkEnvironment(mpi.identity_variables, mpi.tuning_variables, mpi.RESERVED),
    Framework.HOROVOD: FrameworkEnvironment(
        horovod.identity_variables, horovod.tuning_variables, horovod.RESERVED, horovod.RANKS
    ),
    Framework.RAY: FrameworkEnvironment(ray.identity_variables, ray.tuning_variables, ray.IDENTITY_VARIABLES),
    Framework.DMLC: FrameworkEnvironment(dmlc.identity_variables, dmlc.tuning_variables, dmlc.IDENTITY_VARIABLES),
    Framework.PADDLE: FrameworkEnvironment(
        paddle.identity_variables,
        paddle.tuning_variables,
        paddle.IDENTITY_VARIABLES,
        paddle.RANKS,
        paddle.device_variables,
    ),
    Framework.FLOWER: FrameworkEnvironment(
        flower.identity_variables, flower.tuning_variables, flower.IDENTITY_VARIABLES
    ),
    Framework.NONE: FrameworkEnvironment(lambda _: [], lambda _worker, _container: [], frozenset()),
}


def environment(worker: Worker, container: Mapping[str, Any], *, tuned: bool = True) -> list[Json]:
    """Return the `env` of one container. `tuned`: whether it trains or runs beside the training, and is no init container.

    Trainyard's variables come first, so that the user's values can refer to them as `$(RANK)`. A container with
    `envFrom` gets no tuning variables: `env` would override the user's ConfigMap, whose names are unknown here.
    """
    own: list[Json] = list(container.get("env") or [])
    framework = FRAMEWORK_ENVIRONMENTS[worker.spec.framework]
    identity = [*framework.identity(worker), *rank_variables(worker), *framework.devices(worker, container)]
    defaults = [*common_variables(worker), *identity]
    if container["name"] == worker.spec.template["spec"]["containers"][0]["name"]:
        defaults += accelerator_variables(worker)
    if path := container.get("terminationMessagePath"):
        defaults.append({"name": "TRAINYARD_TERMINATION_LOG", "value": path})
    if tuned and not container.get("envFrom"):
        defaults += framework.tuning(worker, container)
    names = {variable["name"] for variable in own}
    return [*(variable for variable in defaults if variable["name"] not in names), *_last_of_each(own)]


def restart_environment(worker: Worker) -> dict[str, str]:
    """Return the variables that change when a worker starts another attempt in its existing pod. Values of the user
    stay.

    Settings that no longer apply are set to nothing, since the pod was created with their old values.
    """
    main: Mapping[str, Any] = worker.spec.template["spec"]["containers"][0]
    own = {variable["name"] for variable in main.get("env") or ()}
    framework = FRAMEWORK_ENVIRONMENTS[worker.spec.framework]
    identity = [*framework.identity(worker), *rank_variables(worker), *framework.devices(worker, main)]
    defaults = [*common_variables(worker), *accelerator_variables(worker), *_order_variables(worker), *identity]
    variables = dict.fromkeys(SETTINGS, "") | {variable["name"]: variable["value"] for variable in defaults}
    return {name: value for name, value in variables.items() if name not in own}


def common_variables(worker: Worker) -> list[Json]:
    """Return the variables of every worker of every framework."""
    variables = {
        "TRAINYARD_JOB_NAME": worker.job.name,
        ENV_JOB_UID: worker.job.uid,
        "TRAINYARD_ATTEMPT": str(worker.attempt),
        "TRAINYARD_REPLICAS": str(worker.of_its_role),
        "TRAINYARD_REPLICA_INDEX": str(worker.number),
        "TRAINYARD_PROCESSES_PER_REPLICA": str(worker.job.processes),
    }
    if worker.spec.roles:
        variables["TRAINYARD_ROLE"] = worker.role
    if worker.job.is_lone(worker.index):
        variables["TRAINYARD_RESTARTS_ALONE"] = "1"
    if (before := worker.job.status.internal.previous_size) is not None:
        variables["TRAINYARD_PREVIOUS_WORLD_SIZE"] = str(before * worker.job.processes)
    if (parallelism := worker.spec.parallelism) is not None:
        # Not one of SETTINGS: it changes only while there are no pods.
        variables["TRAINYARD_PARALLELISM"] = parallelism.model_dump_json()
    if not worker.spec.recovery.warm_start or worker.spec.framework.serves_at_import:
        variables["TRAINYARD_WARM_START"] = "0"
    if (hidden := worker.spec.recovery.hidden_failures) is not HiddenFailures.WARN:
        variables["TRAINYARD_HIDDEN_FAILURES"] = str(hidden)
    if (hang_timeout := worker.spec.recovery.hang_timeout_seconds) is not None:
        variables["TRAINYARD_HANG_TIMEOUT_SECONDS"] = str(hang_timeout)
    if (restart_grace := worker.spec.recovery.restart_grace_seconds) is not None:
        variables["TRAINYARD_RESTART_GRACE_SECONDS"] = str(restart_grace)
    if worker.spec.grace_seconds != DEFAULT_GRACE_SECONDS:
        variables["TRAINYARD_GRACE_PERIOD_SECONDS"] = str(worker.spec.grace_seconds)
    return [{"name": name, "value": value} for name, value in (variables | preflight_variables(worker)).items()]


def _order_variables(worker: Worker) -> list[Json]:
    """Return the place of the worker among the ranks, for its agent. No pod has it for its lifetime: the next attempt may have none."""
    if worker.group_rank == worker.index:
        return []
    return [{"name": GROUP_RANK, "value": str(worker.group_rank)}]


def rank_variables(worker: Worker) -> list[Json]:
    """Return the variables that name a rank. With several processes in a worker, only its agent can set them: it gets their names."""
    names, processes = FRAMEWORK_ENVIRONMENTS[worker.spec.framework].ranks, worker.job.processes
    if not names:
        return []
    if processes > 1:
        value = ",".join(f"{name}={number}" for name, number in names.items())
        return [{"name": "TRAINYARD_RANK_VARIABLES", "value": value}]
    numbers = {
        RankNumber.RANK: str(worker.group_rank),
        RankNumber.WORLD_SIZE: str(worker.workers),
        RankNumber.LOCAL_RANK: "0",
        RankNumber.LOCAL_WORLD_SIZE: "1",
        RankNumber.WORKER: str(worker.group_rank),
        RankNumber.WORKERS: str(worker.workers),
        RankNumber.DEVICES: ",".join(map(str, range(worker.job.accelerators))),
        # The framework itself sets the only endpoint of a worker.
        RankNumber.ENDPOINT: "",
    }
    return [{"name": name, "value": numbers[number]} for name, number in names.items() if numbers[number]]


def accelerator_variables(worker: Worker) -> list[Json]:
    """Return how many accelerators a program of the main container must see. Other containers have devices of their own, or none."""
    number = worker.job.accelerators
    return [{"name": "TRAINYARD_ACCELERATORS_PER_REPLICA", "value": str(number)}] if number else []


def user_set_identity(worker: Worker) -> list[str]:
    """Return the variables in the template that set ranks or the master: they are kept, but worth a warning."""
    reserved = FRAMEWORK_ENVIRONMENTS[worker.spec.framework].reserved
    containers: Iterable[Mapping[str, Any]] = worker.spec.template["spec"]["containers"]
    return sorted({v["name"] for c in containers for v in c.get("env") or () if v["name"] in reserved})


def _last_of_each(variables: list[Json]) -> list[Json]:
    """Keep the last value of each name, as the kubelet does."""
    return list({variable["name"]: variable for variable in variables}.values())
