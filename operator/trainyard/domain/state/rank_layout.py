"""How many ranks a job has, and whether `spec.parallelism` fits them. Pure.

The API server refuses numbers that do not fit, but it cannot count the accelerators for which `processesPerReplica: auto` stands.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.api.recovery import Agent
from trainyard.api.spec import RANKS_FIT, Framework, TrainingJobSpec
from trainyard.domain.state.quantity import quantity

ACCELERATORS = frozenset({"gpu", "gaudi", "neuron", "npu", "tpu"})
"""The last part of the extended resources that stand for one accelerator each (nvidia.com/gpu, habana.ai/gaudi …)."""


def processes(spec: TrainingJobSpec) -> int:
    """Training processes a worker: what the user says, else the accelerators of the main container, else 1."""
    if isinstance(spec.processes_per_replica, int):
        return spec.processes_per_replica
    return max(1, accelerators(spec.template["spec"]["containers"][0]))


def meets_by_itself(spec: TrainingJobSpec) -> bool:
    """Whether torchrun finds a new group by itself when workers come and go: an elastic job without the agent."""
    return spec.elastic is not None and spec.framework is Framework.TORCH and spec.recovery.agent is Agent.NONE


def accelerators(container: Mapping[str, Any]) -> int:
    """The accelerators that a container asks for, MIG slices included. Kubernetes has them in `limits`, whole."""
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
