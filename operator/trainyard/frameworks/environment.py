"""The environment of a worker's containers: ours first, the user's own value always instead of ours, nothing twice."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.api.spec import USUAL_GRACE, Framework
from trainyard.domain.state.rank_layout import processes
from trainyard.frameworks import torch
from trainyard.frameworks.worker_spec import Json, Worker

SETTINGS = ("TRAINYARD_WARM_START", "TRAINYARD_HANG_TIMEOUT_SECONDS", "TRAINYARD_GRACE_PERIOD_SECONDS")
"""Told where they are not the usual ones. Set to nothing they are as if they were not set."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a framework's workers are told of each other."""

    identity: Callable[[Worker], list[Json]]
    """Who the worker is: needed for the group to work at all."""
    tuning: Callable[[Worker, Mapping[str, Any]], list[Json]]
    """Settings that help, for one container."""
    watched: frozenset[str]
    """Variables that a user hardly means to set by hand."""


WIRING: Mapping[Framework, Wiring] = {
    Framework.TORCH: Wiring(torch.identity, torch.tuning, torch.IDENTITY),
    Framework.NONE: Wiring(lambda _: [], lambda _worker, _container: [], frozenset()),
}


def environment(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """The `env` of one container.

    Ours stands before the user's, so that the user's values can refer to it as `$(RANK)`. A container with `envFrom` gets
    no tuning: `env` would override what the user's ConfigMap says of the same variable, which cannot be seen from here.
    """
    own: list[Json] = list(container.get("env") or [])
    wiring = WIRING[worker.spec.framework]
    ours = [*common(worker), *wiring.identity(worker)]
    if path := container.get("terminationMessagePath"):
        ours.append({"name": "TRAINYARD_TERMINATION_LOG", "value": path})
    if not container.get("envFrom"):
        ours += wiring.tuning(worker, container)
    names = {variable["name"] for variable in own}
    return [*(variable for variable in ours if variable["name"] not in names), *_last_of_each(own)]


def renewed(worker: Worker) -> dict[str, str]:
    """What differs for a worker that begins another attempt in the pod that it has. What the user has set stays as it is.

    Settings that are not told any more are told as nothing: the pod's own variables are those of the time when it was made.
    """
    main: Mapping[str, Any] = worker.spec.template["spec"]["containers"][0]
    own = {variable["name"] for variable in main.get("env") or ()}
    ours = [*common(worker), *WIRING[worker.spec.framework].identity(worker)]
    told = dict.fromkeys(SETTINGS, "") | {variable["name"]: variable["value"] for variable in ours}
    return {name: value for name, value in told.items() if name not in own}


def common(worker: Worker) -> list[Json]:
    """What every worker of every framework is told."""
    variables = {
        "TRAINYARD_JOB_NAME": worker.job.name,
        "TRAINYARD_JOB_UID": worker.job.uid,
        "TRAINYARD_ATTEMPT": str(worker.attempt),
        "TRAINYARD_REPLICAS": str(worker.workers),
        "TRAINYARD_REPLICA_INDEX": str(worker.index),
        "TRAINYARD_PROCESSES_PER_REPLICA": str(processes(worker.spec)),
    }
    if (before := worker.job.status.internal.previous_size) is not None:
        variables["TRAINYARD_PREVIOUS_WORLD_SIZE"] = str(before * processes(worker.spec))
    if (parallelism := worker.spec.parallelism) is not None:
        # Not one of SETTINGS: it changes only while there are no pods.
        variables["TRAINYARD_PARALLELISM"] = parallelism.model_dump_json()
    if not worker.spec.recovery.warm_start:
        variables["TRAINYARD_WARM_START"] = "0"
    if (patience := worker.spec.recovery.hang_timeout_seconds) is not None:
        variables["TRAINYARD_HANG_TIMEOUT_SECONDS"] = str(patience)
    if worker.spec.grace_seconds != USUAL_GRACE:
        variables["TRAINYARD_GRACE_PERIOD_SECONDS"] = str(worker.spec.grace_seconds)
    return [{"name": name, "value": value} for name, value in variables.items()]


def set_by_hand(worker: Worker) -> list[str]:
    """Variables in the template that name ranks or the master: kept, but worth a warning."""
    watched = WIRING[worker.spec.framework].watched
    containers: Iterable[Mapping[str, Any]] = worker.spec.template["spec"]["containers"]
    return sorted({v["name"] for c in containers for v in c.get("env") or () if v["name"] in watched})


def _last_of_each(variables: list[Json]) -> list[Json]:
    """Where the user names a variable twice, the last one counts, as it does for the kubelet."""
    return list({variable["name"]: variable for variable in variables}.values())
