"""The variables by which users limit the accelerators that a process sees, and where that leaves ranks without a device. Pure.

The operator sets none of them. A rank chooses its device among those of its container, by LOCAL_RANK or as JAX does. With one visible device,
each rank but the first would ask for a device that it does not see (docs/frameworks/accelerators.md).
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from trainyard.domain.state.accelerators import TPU
from trainyard.frameworks.worker_spec import Json, Worker

VISIBLE_DEVICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "nvidia.com/*": ("CUDA_VISIBLE_DEVICES",),
        "amd.com/gpu": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        "habana.ai/gaudi": ("HABANA_VISIBLE_MODULES",),
        TPU: ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"),
        "aws.amazon.com/neuron*": ("NEURON_RT_VISIBLE_CORES",),
        "huawei.com/*": ("ASCEND_RT_VISIBLE_DEVICES",),
        "gpu.intel.com/*": ("ZE_AFFINITY_MASK",),
    }
)
"""By extended resource, in whose name `*` stands for any characters."""


def hidden_devices(worker: Worker) -> str:
    """Return why ranks of this worker see too few devices; empty where they do not, or that is not certain."""
    main: Mapping[str, Any] = worker.spec.template["spec"]["containers"][0]
    ranks = worker.job.processes
    names = {*_variables_of(main)}
    given: list[Json] = main.get("env") or []
    for variable in given:
        devices = (variable.get("value") or "").split(",")
        # Other notations, as ranges and UUIDs, are not interpreted.
        if variable["name"] in names and all(map(str.isdecimal, devices)) and len(devices) < ranks:
            return (
                f"the template sets {variable['name']}={variable['value']}, so that {ranks} ranks of a worker see"
                f" {len(devices)} of its devices; remove it, since each rank chooses its own device"
            )
    return ""


def _variables_of(container: Mapping[str, Any]) -> Iterator[str]:
    limits: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
    for pattern, names in VISIBLE_DEVICES.items():
        if any(fnmatchcase(resource, pattern) for resource in limits):
            yield from names
