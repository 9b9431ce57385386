"""Who each process of this worker is: the environment that torchrun would give it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

MOST_PROCESSES = 1024
MOST_ATTEMPTS = 10**12
LONGEST_STEP = 7 * 24 * 3600
USUAL_GRACE = 30.0
"""Kubernetes' own."""


class SettingError(Exception):
    """A variable that the operator sets is missing or wrong."""


class Place(NamedTuple):
    """This worker in its group."""

    worker: int
    """Its index, from 0."""
    workers: int
    """How many there are."""
    processes: int
    """How many ranks run in each."""
    attempt: int
    """From 1."""
    run_id: str
    """Another one for each attempt of each job."""

    @property
    def ranks(self) -> list[int]:
        """The global ranks of this worker's processes."""
        return [self.worker * self.processes + local for local in range(self.processes)]


def place(environment: Mapping[str, str]) -> Place:
    """What the operator has set. Raises SettingError."""
    worker = _number(environment, "TRAINYARD_REPLICA_INDEX", 0, 10**6)
    workers = _number(environment, "TRAINYARD_REPLICAS", 1, 10**6)
    if worker >= workers:
        raise SettingError(
            f"TRAINYARD_REPLICA_INDEX is {worker}, and TRAINYARD_REPLICAS {workers}: counting begins at 0"
        )
    attempt = _number(environment, "TRAINYARD_ATTEMPT", 1, MOST_ATTEMPTS)
    return Place(
        worker=worker,
        workers=workers,
        processes=_number(environment, "TRAINYARD_PROCESSES", 1, MOST_PROCESSES),
        attempt=attempt,
        run_id=f"{environment.get('TRAINYARD_JOB_UID', '')}-{attempt}",
    )


def environments(where: Place, inherited: Mapping[str, str]) -> dict[int, dict[str, str]]:
    """The environment of each process, by rank. What was set by hand for all ranks alike stays; ranks cannot be."""
    made = {}
    for local, rank in enumerate(where.ranks):
        world = where.workers * where.processes
        own = {
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
        }
        variables = {**inherited, **{name: str(value) for name, value in own.items()}}
        if where.processes > 1:
            # As torchrun does: each process would otherwise take all cores for itself.
            variables.setdefault("OMP_NUM_THREADS", "1")
        made[rank] = variables
    return made


def hang_seconds(environment: Mapping[str, str]) -> float | None:
    """Seconds that a step may take, 0 for any; None where it is not set. Raises SettingError."""
    name = "TRAINYARD_HANG_SECONDS"
    return float(_number(environment, name, 0, LONGEST_STEP)) if environment.get(name) else None


def grace_seconds(environment: Mapping[str, str]) -> float:
    """Seconds that the pod gets to end, once it was asked to. Raises SettingError."""
    name = "TRAINYARD_GRACE_SECONDS"
    return float(_number(environment, name, 0, 10**9)) if environment.get(name) else USUAL_GRACE


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = environment.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
        raise SettingError(f"{name} must be a whole number from {least} to {most}, and is {text!r}")
    return int(text)
