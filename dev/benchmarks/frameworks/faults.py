"""The faults of each framework: those of the recovery benchmark, at a fixed member of the group."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from signal import SIGKILL
from typing import Final

from dev.benchmarks.frameworks.processes import named
from dev.benchmarks.recovery import ranks
from dev.benchmarks.recovery.faults import FAULTS, Fault, Scene
from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.scale.systems.base import PODS_PATH

SETTLED_STEPS: Final = 150
BOUND_SECONDS: Final = 180.0
"""JAX notices a dead peer after 100 s."""


def of_rank(rank: int) -> Callable[[int], int]:
    """Return the target of a fault that hits the same rank in each repeat."""
    return lambda _: rank


def kill(name: str, *, of_target: bool = False) -> Callable[[Scene], float]:
    """Return a fault that kills the job's process of this name, by default the only one; else that in the target rank's pod."""

    def inject(scene: Scene) -> float:
        pid, _ = _only(name, scene, of_target=of_target)
        return ranks.send(pid, SIGKILL)

    return inject


def delete_pod_of(name: str) -> Callable[[Scene], float]:
    """Return a fault that deletes the pod with the job's only process of this name."""

    def inject(scene: Scene) -> float:
        _, pod = _only(name, scene, of_target=False)
        now = time.monotonic()
        scene.ground.api.call("DELETE", f"{PODS_PATH}/{pod}")
        return now

    return inject


def of_ranks(framework: str, *, first: str, other: str) -> Sequence[Fault]:
    """Return the faults of rank 0 and of another: its process is killed, or its pod is deleted. `first`: what rank 0 is called."""
    return [
        fault(framework, "kill", f"the process of {other} is killed", like="kill", rank=1),
        fault(framework, "pod", f"the pod of {other} is deleted", like="pod", rank=1),
        fault(framework, "first-kill", f"the process of {first} is killed", like="kill", rank=0),
        fault(framework, "first-pod", f"the pod of {first} is deleted", like="pod", rank=0),
    ]


def fault(
    framework: str, name: str, title: str, *, like: str, rank: int, inject: Callable[[Scene], float] | None = None
) -> Fault:
    """Return a fault of this framework; `like`: the fault of the recovery benchmark that it resembles, and is, without `inject`."""
    return replace(
        FAULTS[like],
        name=f"{framework}-{name}",
        title=f"{framework}: {title}",
        inject=inject or FAULTS[like].inject,
        bound=BOUND_SECONDS,
        aim=None,
        settled=SETTLED_STEPS,
        target=of_rank(rank),
    )


def _only(name: str, scene: Scene, *, of_target: bool) -> tuple[int, str]:
    found = [(pid, pod) for pid, pod in named(scene.job.name, name).items() if not of_target or pod == scene.pod]
    if len(found) != 1:
        raise BenchmarkError(f"{len(found)} processes {name} were found, not one")
    return found[0]
