"""Give each process of this worker its rank: the environment that torchrun would set. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from trainyard_agent.gpu import REQUESTED_VARIABLE

GROUP_RANK = "TRAINYARD_GROUP_RANK"
"""The place of this worker in the order of ranks, where that is not its index."""
RANK_VARIABLES = "TRAINYARD_RANK_VARIABLES"
"""Further variables that name ranks, as NAME=KIND, with a comma between them. A KIND is a key of `_numbers`, `devices` or `endpoint`."""
DEVICES = "devices"
"""The accelerators of a process, as `0,1`: those of the worker, divided among its processes."""
ENDPOINT = "endpoint"
"""The entry of a process in the list of Paddle's endpoints."""
ENDPOINTS_VARIABLE = "PADDLE_TRAINER_ENDPOINTS"
MAX_PROCESSES = 1024
MAX_ATTEMPTS = 10**12
MAX_STEP_SECONDS = 7 * 24 * 3600
DEFAULT_GRACE_SECONDS = 30.0
"""Kubernetes' default."""


class SettingError(Exception):
    """A variable that the operator sets is missing or wrong."""


class Place(NamedTuple):
    """The place of this worker in its group."""

    worker: int
    """Its place in the order of ranks, from 0: its index, unless the operator gives another one."""
    workers: int
    """How many there are."""
    processes: int
    """How many ranks run in each."""
    attempt: int
    """From 1."""
    run_id: str
    """Unique for each attempt of each job."""

    @property
    def ranks(self) -> list[int]:
        """The global ranks of this worker's processes."""
        return [self.worker * self.processes + local for local in range(self.processes)]


def place(environment: Mapping[str, str]) -> Place:
    """Return the place that the operator has set in the environment. Raises SettingError."""
    worker = _number(environment, "TRAINYARD_REPLICA_INDEX", 0, 10**6)
    workers = _number(environment, "TRAINYARD_REPLICAS", 1, 10**6)
    if worker >= workers:
        raise SettingError(f"TRAINYARD_REPLICA_INDEX is {worker}, and TRAINYARD_REPLICAS {workers}: indexes start at 0")
    if environment.get(GROUP_RANK):
        worker = _number(environment, GROUP_RANK, 0, workers - 1)
    attempt = _number(environment, "TRAINYARD_ATTEMPT", 1, MAX_ATTEMPTS)
    return Place(
        worker=worker,
        workers=workers,
        processes=_number(environment, "TRAINYARD_PROCESSES_PER_REPLICA", 1, MAX_PROCESSES),
        attempt=attempt,
        run_id=f"{environment.get('TRAINYARD_JOB_UID', '')}-{attempt}",
    )


def rank_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the further variables that name a rank, and the kind of number that each gets. Raises SettingError."""
    entries = [entry.partition("=") for entry in environment.get(RANK_VARIABLES, "").split(",") if entry]
    kinds = sorted([*_numbers(Place(0, 1, 1, 1, ""), 0), DEVICES, ENDPOINT])
    if wrong := [name + sign + kind for name, sign, kind in entries if not name or kind not in kinds]:
        raise SettingError(f"{RANK_VARIABLES} must be NAME=KIND with a kind of {', '.join(kinds)}; got {wrong[0]!r}")
    return {name: kind for name, _, kind in entries}


def _numbers(where: Place, local: int) -> dict[str, int]:
    """Return the numbers by which libraries know a process, by their kind."""
    return {
        "rank": where.worker * where.processes + local,
        "world-size": where.workers * where.processes,
        "local-rank": local,
        "local-world-size": where.processes,
        "worker": where.worker,
        "workers": where.workers,
    }


def _devices(where: Place, local: int, inherited: Mapping[str, str]) -> str:
    """Return the numbers of a process's accelerators; empty where those of the worker are not known, or cannot be divided equally."""
    text = inherited.get(REQUESTED_VARIABLE, "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    share, rest = divmod(number, where.processes)
    return "" if rest else ",".join(map(str, range(local * share, (local + 1) * share)))


def _endpoint(rank: int, world: int, inherited: Mapping[str, str]) -> str:
    """Return the endpoint of a process; empty where the list does not have one for each."""
    endpoints = inherited.get(ENDPOINTS_VARIABLE, "").split(",")
    return endpoints[rank] if len(endpoints) == world else ""


def environments(where: Place, inherited: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """Return the environment of each process, by rank. Variables set by hand stay, but for those that name a rank."""
    made, further = {}, rank_variables(inherited)
    for local, rank in enumerate(where.ranks):
        numbers = _numbers(where, local)
        world = numbers["world-size"]
        ranked = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": where.processes,
            "GROUP_RANK": where.worker,
            "GROUP_WORLD_SIZE": where.workers,
            "ROLE_NAME": "default",
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": world,
            "NODE_RANK": where.worker,
            "TORCHELASTIC_RUN_ID": where.run_id,
            "TORCHELASTIC_RESTART_COUNT": where.attempt - 1,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_USE_AGENT_STORE": False,
            **{name: numbers[kind] for name, kind in further.items() if kind in numbers},
        }
        variables = {**inherited, **{name: str(value) for name, value in ranked.items()}}
        texts = {DEVICES: _devices(where, local, inherited), ENDPOINT: _endpoint(rank, world, inherited)}
        variables.update({name: texts[kind] for name, kind in further.items() if texts.get(kind)})
        if where.processes > 1:
            # As torchrun does: each process would otherwise use all cores.
            variables.setdefault("OMP_NUM_THREADS", "1")
        made[rank] = variables
    return made


def hang_seconds(environment: Mapping[str, str]) -> float | None:
    """Return the seconds that a step may take, 0 for any; None where it is not set. Raises SettingError."""
    name = "TRAINYARD_HANG_TIMEOUT_SECONDS"
    return float(_number(environment, name, 0, MAX_STEP_SECONDS)) if environment.get(name) else None


def grace_seconds(environment: Mapping[str, str]) -> float:
    """Return the pod's termination grace period in seconds. Raises SettingError."""
    name = "TRAINYARD_GRACE_PERIOD_SECONDS"
    return float(_number(environment, name, 0, 10**9)) if environment.get(name) else DEFAULT_GRACE_SECONDS


def restart_grace_seconds(environment: Mapping[str, str]) -> float:
    """Return the seconds that ranks get to save their work when the group restarts; by default the pod's. Raises SettingError."""
    name = "TRAINYARD_RESTART_GRACE_SECONDS"
    return float(_number(environment, name, 0, 10**9)) if environment.get(name) else grace_seconds(environment)


def hidden_failures_fail(environment: Mapping[str, str]) -> bool:
    """Return whether a rank that fails under a command that succeeds fails this worker. Raises SettingError."""
    name = "TRAINYARD_HIDDEN_FAILURES"
    value = environment.get(name) or "Warn"
    if value not in {"Warn", "Fail"}:
        raise SettingError(f"{name} must be Warn or Fail, got {value!r}")
    return value == "Fail"


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environment.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise SettingError(f"{name} must be an integer from {least} to {most}, got {text!r}")
    return int(text)
