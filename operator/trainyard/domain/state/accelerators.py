"""Count the training processes of a worker from the accelerators that its pod requests (`processesPerReplica: auto`). Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Literal

from trainyard.api.internal_status import MAX_RESOURCES_LENGTH, CountedProcesses
from trainyard.api.spec import MAX_PROCESSES_PER_REPLICA, Framework, TrainingJobSpec
from trainyard.domain.state.quantity import quantity

DeviceProcesses = int | Literal["worker", "none"]
"""How many processes an extended resource means: a number for each device, or `worker`: one process for all devices of a worker.
`none`: it is no accelerator."""
AcceleratorTable = Mapping[str, DeviceProcesses]
"""By the name of the resource, in which `*` stands for any characters. The last name that matches applies; a name without `*` first."""

TPU = "google.com/tpu"
ACCELERATORS: AcceleratorTable = MappingProxyType(
    {
        **dict.fromkeys(("*/gpu", "*/npu", "*/xpu", "*/mlu", "*/gcu", "*/dcu", "*/gaudi"), 1),
        **dict.fromkeys(("aws.amazon.com/neuron", "aws.amazon.com/neurondevice", "aws.amazon.com/neuroncore"), 1),
        **dict.fromkeys(("gpu.intel.com/i915", "gpu.intel.com/xe", "deviceclass.resource.kubernetes.io/gpu.*"), 1),
        **dict.fromkeys((f"huawei.com/Ascend{name}" for name in ("310", "310P", "910", "910A", "910B", "910C")), 1),
        **dict.fromkeys((f"huawei.com/Ascend910B{number}" for number in range(1, 5)), 1),
        # JAX and PJRT: one process drives all chips of its host.
        **dict.fromkeys((TPU, "cloud-tpus.google.com/*"), "worker"),
        # Time slices of one GPU, on which NCCL refuses a second rank. Of several MIG slices, CUDA shows a process one.
        **dict.fromkeys(("*/gpu.shared", "*/mig-*"), "worker"),
        "*/efa": "none",
        "rdma/*": "none",
        # Device files that programs mount file systems and run virtual machines with, as generic device plugins and KubeVirt name them.
        **dict.fromkeys(("*/fuse", "*/kvm", "*/tun", "*/net_tun", "*/vhost-net", "*/vhost-vsock"), "none"),
    }
)
"""The extended resources that the operator knows. `TRAINYARD_ACCELERATORS` adds to them."""
SEVERAL_CORES = frozenset({"aws.amazon.com/neuron", "aws.amazon.com/neurondevice"})
"""Resources that count devices of several cores, each of which takes a process: how many depends on the model."""
REMEDY = "Set processesPerReplica to the number of processes that each worker needs"


@dataclass(frozen=True, slots=True)
class ProcessCount:
    """How many processes `auto` means for a pod."""

    processes: int
    resources: str = ""
    """The extended resources that it was counted from; empty where there are none."""
    uncertain_because: str = ""
    """Why it may be wrong, and what to do; empty where it is sure."""

    @property
    def counted(self) -> CountedProcesses | None:
        """Return what is stored, so that another table does not change a group that exists; None: no table matters."""
        return CountedProcesses(resources=self.resources, processes=self.processes) if self.resources else None


def count_processes(
    spec: TrainingJobSpec, table: AcceleratorTable = ACCELERATORS, stored: CountedProcesses | None = None
) -> ProcessCount:
    """Return how many processes `auto` means for this template. `stored`: what was counted before, which holds for equal resources."""
    pod: Mapping[str, Any] = spec.template["spec"]
    main: Mapping[str, Any] = pod["containers"][0]
    devices = dict(_devices(pod)) | dict(_devices(main))
    kinds = {name: _lookup(name, table) for name in devices}
    counted = sum(devices[name] * each for name, each in kinds.items() if isinstance(each, int))
    if spec.framework.has_one_process:
        return ProcessCount(1)
    count = min(max(1, counted), MAX_PROCESSES_PER_REPLICA)
    resources = ",".join(f"{name}={number}" for name, number in sorted(devices.items()))[:MAX_RESOURCES_LENGTH]
    if stored is not None and stored.resources == resources:
        count = stored.processes
    why = "" if spec.framework is Framework.NONE else _uncertain(pod, main, kinds, table)
    if not why:
        return ProcessCount(count, resources)
    processes = "1 process" if count == 1 else f"{count} processes"
    return ProcessCount(count, resources, f"{why}, so that auto starts {processes} in each worker. {REMEDY}")


def accelerators(container: Mapping[str, Any], table: AcceleratorTable = ACCELERATORS) -> int:
    """Return the accelerators that a container requests, as far as the table knows them."""
    return sum(number for name, number in _devices(container) if _lookup(name, table) not in {None, "none"})


def requested(container: Mapping[str, Any], resource: str) -> int:
    """Return how many devices of one kind a container requests."""
    return dict(_devices(container)).get(resource, 0)


def visible_accelerators(container: Mapping[str, Any], table: AcceleratorTable = ACCELERATORS) -> int:
    """Return the least number of accelerators that a process of the container sees. Of a kind that takes one process for all, it is one."""
    kinds = [(number, _lookup(name, table)) for name, number in _devices(container)]
    counted = sum(number for number, kind in kinds if isinstance(kind, int))
    return counted or int(any(kind == "worker" for _, kind in kinds))


def _devices(requester: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the extended resources that a container or a pod requests. Kubernetes has them in `limits`, as integers."""
    limits: Mapping[str, Any] = (requester.get("resources") or {}).get("limits") or {}
    for name, amount in limits.items():
        number = int(quantity(amount) or 0)
        # Kubernetes' own resources have no domain, or its own.
        if "/" in name and not name.startswith("kubernetes.io/") and number > 0:
            yield name, number


def _lookup(name: str, table: AcceleratorTable) -> DeviceProcesses | None:
    if name in table:
        return table[name]
    matching = [each for pattern, each in table.items() if "*" in pattern and fnmatchcase(name, pattern)]
    return matching[-1] if matching else None


def _uncertain(
    pod: Mapping[str, Any],
    main: Mapping[str, Any],
    kinds: Mapping[str, DeviceProcesses | None],
    table: AcceleratorTable,
) -> str:
    """Return why the processes cannot be counted. Beside accelerators that the table knows, other devices are taken for networks."""
    several = [name for name in kinds if name in SEVERAL_CORES and table.get(name) == ACCELERATORS[name]]
    if several:
        return f"{several[0]} counts devices that have several cores each"
    if any(each not in {None, "none"} for each in kinds.values()):
        return ""
    unknown = sorted(name for name, each in kinds.items() if each is None)
    if unknown:
        return f"the operator does not know how many accelerators {', '.join(unknown)} means"
    claims = [each["name"] for each in (*_claims(main), *_claims(pod))]
    return f"the operator cannot read the devices of resource claim {', '.join(claims)}" if claims else ""


def _claims(requester: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return (requester.get("resources") or {}).get("claims") or []
