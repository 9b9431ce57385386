"""How many ranks a job has. Pure."""

from collections.abc import Mapping
from typing import Any

from trainyard.api.spec import TrainingJobSpec
from trainyard.domain.quantity import quantity

ACCELERATORS = frozenset({"gpu", "gaudi", "neuron", "npu", "tpu"})
"""The last part of the extended resources that stand for one accelerator each (nvidia.com/gpu, habana.ai/gaudi …)."""


def processes(spec: TrainingJobSpec) -> int:
    """Training processes a worker: what the user says, else the accelerators of the main container, else 1."""
    if isinstance(spec.processes_per_replica, int):
        return spec.processes_per_replica
    return max(1, accelerators(spec.template["spec"]["containers"][0]))


def accelerators(container: Mapping[str, Any]) -> int:
    """The accelerators that a container asks for, MIG slices included. Kubernetes has them in `limits`, whole."""
    limits: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
    return sum(int(quantity(count) or 0) for name, count in limits.items() if _is_accelerator(name))


def _is_accelerator(resource: str) -> bool:
    last = resource.rsplit("/", 1)[-1]
    return last in ACCELERATORS or last.startswith("mig-")
