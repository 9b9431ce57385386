"""When a variable of the user leaves ranks without a device."""

from typing import Any

import pytest

from tests.support.worker_pods import container, environment_of, worker
from trainyard.domain.state.accelerators import count_processes
from trainyard.frameworks.visible_devices import VISIBLE_DEVICES, hidden_devices
from trainyard.frameworks.worker_spec import Worker

RESOURCES = {
    "nvidia.com/gpu": "CUDA_VISIBLE_DEVICES",
    "amd.com/gpu": "ROCR_VISIBLE_DEVICES",
    "habana.ai/gaudi": "HABANA_VISIBLE_MODULES",
    "google.com/tpu": "TPU_VISIBLE_CHIPS",
    "aws.amazon.com/neuroncore": "NEURON_RT_VISIBLE_CORES",
    "huawei.com/Ascend910": "ASCEND_RT_VISIBLE_DEVICES",
    "gpu.intel.com/xe": "ZE_AFFINITY_MASK",
}


def limited(resource: str, name: str, value: str, processes: Any = 2, framework: str = "torch") -> Worker:
    env, resources = [{"name": name, "value": value}], {"limits": {resource: 2}}
    return worker(container(env=env, resources=resources), processesPerReplica=processes, framework=framework)


@pytest.mark.parametrize(("resource", "name"), RESOURCES.items())
def test_rank_without_a_device_is_reported(resource: str, name: str) -> None:
    note = hidden_devices(limited(resource, name, "0"))
    assert f"sets {name}=0, so that 2 ranks of a worker see 1 of its devices; remove it" in note


@pytest.mark.parametrize("value", ["0,1", "0-1", "GPU-8932f937", "all", "", "0,GPU-1"])
def test_other_values_are_not_reported(value: str) -> None:
    assert hidden_devices(limited("nvidia.com/gpu", "CUDA_VISIBLE_DEVICES", value)) == ""


def test_nothing_is_reported_where_devices_suffice() -> None:
    assert hidden_devices(limited("nvidia.com/gpu", "CUDA_VISIBLE_DEVICES", "1", processes=1)) == ""
    assert hidden_devices(limited("nvidia.com/gpu", "ASCEND_RT_VISIBLE_DEVICES", "0")) == ""
    assert hidden_devices(worker(processesPerReplica=2)) == ""
    reference = [{"name": "CUDA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    made = worker(container(env=reference, resources={"limits": {"nvidia.com/gpu": 2}}), processesPerReplica=2)
    assert hidden_devices(made) == ""


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_operator_sets_none_of_them(resource: str, framework: str) -> None:
    made = worker(container(resources={"limits": {resource: 2}}), framework=framework)
    assert environment_of(made).keys().isdisjoint(name for names in VISIBLE_DEVICES.values() for name in names)
    # One process for all chips of a TPU host; else one for each device.
    assert count_processes(made.spec).processes == (1 if resource == "google.com/tpu" else 2)
