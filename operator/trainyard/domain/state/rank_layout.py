"""Count the ranks of a job, and check that `spec.parallelism` divides them. Pure.

The API server rejects numbers that do not fit, but it cannot count the accelerators behind `processesPerReplica: auto`.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.api.recovery import Agent
from trainyard.api.spec import RANKS_FIT, Framework, TrainingJobSpec
from trainyard.domain.state.quantity import quantity

ACCELERATORS = frozenset({"gpu", "gaudi", "neuron", "npu", "tpu"})
"""The last part of the names of extended resources that count single accelerators (nvidia.com/gpu, habana.ai/gaudi …)."""


def processes(spec: TrainingJobSpec) -> int:
    """Return the training processes of a worker: the number in the spec, else the accelerators of the main container, else 1."""
    if isinstance(spec.processes_per_replica, int):
        return spec.processes_per_replica
    return max(1, accelerators(spec.template["spec"]["containers"][0]))


def uses_torchrun_rendezvous(spec: TrainingJobSpec) -> bool:
    """Return whether torchrun forms a new group by itself when workers join or exit: an elastic job without the agent."""
    return spec.elastic is not None and spec.framework is Framework.TORCH and spec.recovery.agent is Agent.NONE


def accelerators(container: Mapping[str, Any]) -> int:
    """Return the accelerators that a container requests, MIG slices included. Kubernetes has them in `limits`, as integers."""
    limits: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
    return sum(int(quantity(count) or 0) for name, count in limits.items() if _is_accelerator(name))


def indivisible(spec: TrainingJobSpec, workers: int) -> str:
    """Return why the ranks of so many workers cannot be divided into whole copies of the model; empty where they can."""
    split = spec.parallelism
    if split is None or (workers * (each := processes(spec))) % split.ranks == 0:
        return ""
    one_copy = f"{split.tensor} x {split.pipeline} x {split.context} is {split.ranks}"
    return f"{RANKS_FIT}: {workers} x {each} is {workers * each}, and {one_copy}"


def _is_accelerator(resource: str) -> bool:
    last = resource.rsplit("/", 1)[-1]
    return last in ACCELERATORS or last.startswith("mig-")
