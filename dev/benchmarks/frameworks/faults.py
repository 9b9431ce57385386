"""The faults of each framework: those of the recovery benchmark, at a fixed member of the group."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from dev.benchmarks.recovery.faults import FAULTS, Fault

SETTLED_STEPS: Final = 60
BOUND_SECONDS: Final = 180.0
"""JAX notices a dead peer after 100 s."""


def of_rank(rank: int) -> Callable[[int], int]:
    """Return the target of a fault that hits the same rank in each repeat."""
    return lambda _: rank


def of_ranks(framework: str, *, first: str, others: str) -> Sequence[Fault]:
    """Return the faults of rank 0 and of another: its process is killed, or its pod is deleted. `first`: what rank 0 is called."""
    return [
        replace(
            FAULTS[fault],
            name=f"{framework}-{name}",
            title=f"{framework}: {title}",
            bound=BOUND_SECONDS,
            aim=None,
            settled=SETTLED_STEPS,
            target=of_rank(rank),
        )
        for name, fault, rank, title in (
            ("kill", "kill", 1, f"the process of {others} is killed"),
            ("pod", "pod", 1, f"the pod of {others} is deleted"),
            ("first-kill", "kill", 0, f"the process of {first} is killed"),
            ("first-pod", "pod", 0, f"the pod of {first} is deleted"),
        )
    ]
