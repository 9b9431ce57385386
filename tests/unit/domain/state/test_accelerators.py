"""How many processes `processesPerReplica: auto` means, and what the operator says where it cannot know."""

from typing import Any

import pytest

from tests.support.jobs import NOW, job, spec, stored, summarize
from trainyard.api.internal_status import CountedProcesses
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.plan import plan
from trainyard.domain.state.accelerators import (
    ACCELERATORS,
    REMEDY,
    AcceleratorTable,
    accelerators,
    count_processes,
    visible_accelerators,
)
from trainyard.domain.state.observe import job_view
from trainyard.domain.state.snapshot import JobView, Snapshot


def template(limits: dict[str, Any] | None = None, claims: tuple[str, ...] = (), **pod: Any) -> dict[str, Any]:
    """A template whose main container has these limits and resource claims."""
    resources: dict[str, Any] = {"limits": limits or {}, "claims": [{"name": name} for name in claims]}
    return {"spec": {"containers": [{"name": "main", "image": "trainer:1", "resources": resources}], **pod}}


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"aws.amazon.com/neuroncore": 32}, 32),
        ({"huawei.com/Ascend910": "8"}, 8),
        ({"huawei.com/Ascend910B3": 8, "huawei.com/Ascend910B3-memory": 65536}, 8),
        ({"gpu.intel.com/i915": 4, "gpu.intel.com/i915_monitoring": 1}, 4),
        ({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 2}, 2),
        ({"cambricon.com/mlu": 4}, 4),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 30000, "nvidia.com/gpucores": 100}, 2),
        ({"nvidia.com/gpu": 100_000}, 1024),
        ({"google.com/tpu": 4}, 1),
        ({"nvidia.com/gpu.shared": 2}, 1),
        ({"nvidia.com/mig-1g.10gb.shared": 2}, 1),
        ({"rdma/hca": 8, "vpc.amazonaws.com/efa": 32}, 1),
        ({"hugepages-2Mi": "1Gi", "kubernetes.io/batch-cpu": 8000}, 1),
        ({"smarter-devices/fuse": 1}, 1),
        ({"github.com/fuse": "1"}, 1),
        ({"devices.kubevirt.io/kvm": 1, "devices.kubevirt.io/tun": 1, "devices.kubevirt.io/vhost-net": 1}, 1),
        ({"squat.ai/fuse": 4, "nvidia.com/gpu": 2}, 2),
    ],
)
def test_known_resources_are_counted_without_warning(limits: dict[str, Any], count: int) -> None:
    found = count_processes(spec(template=template(limits)))
    assert (found.processes, found.uncertain_because) == (count, "")


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        (None, 1),
        ({"cpu": "8"}, 1),
        ({"nvidia.com/gpu": "0"}, 1),
        ({"nvidia.com/gpu": 1}, 1),
        ({"nvidia.com/gpu": 8}, 8),
        ({"nvidia.com/gpu": "8"}, 8),
        ({"amd.com/gpu": "4"}, 4),
        ({"habana.ai/gaudi": "8"}, 8),
        ({"aws.amazon.com/neuron": "16"}, 16),
        ({"google.com/tpu": "4"}, 1),
        ({"nvidia.com/mig-1g.5gb": 2, "nvidia.com/mig-3g.20gb": 1}, 1),
        ({"vpc.amazonaws.com/efa": 4, "nvidia.com/gpu": 8}, 8),
        ({"rdma/hca": 1}, 1),
        # Nonsense is for the API server to refuse, and no reason to stumble here.
        ({"nvidia.com/gpu": "eight"}, 1),
        ({"nvidia.com/gpu": -2}, 1),
    ],
)
def test_auto_counts_the_accelerators_of_the_main_container(limits: Any, count: int) -> None:
    pod = template(limits)
    pod["spec"]["containers"].append(template({"nvidia.com/gpu": 5})["spec"]["containers"][0] | {"name": "sidecar"})
    assert job(template=pod).job.processes == count


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        (None, 0),
        ({"cpu": "8", "rdma/hca": 8}, 0),
        ({"example.com/widget": 4}, 0),
        ({"nvidia.com/gpu": 8, "rdma/hca": 8}, 8),
        # CUDA shows a process one slice of several, and one GPU for all of its time slices.
        ({"nvidia.com/mig-1g.5gb": 2}, 1),
        ({"nvidia.com/gpu.shared": 4}, 1),
        ({"google.com/tpu": 4}, 1),
        ({"google.com/tpu": 0}, 0),
    ],
)
def test_visible_accelerators_of_a_container(limits: Any, count: int) -> None:
    made = template(limits)
    assert visible_accelerators(made["spec"]["containers"][0]) == count
    assert view(template=made).accelerators == count


def test_table_of_the_administrator_says_what_is_visible() -> None:
    assert view({"example.com/widget": 2}).accelerators == 4
    assert view({"example.com/widget": "worker"}).accelerators == 1


def test_explicit_number_of_processes() -> None:
    assert job(template=template({"nvidia.com/gpu": 8}), processesPerReplica=2).job.processes == 2


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (template({"example.com/widget": 4}), "how many accelerators example.com/widget means"),
        (
            template({"example.com/b": 1, "example.com/a": 1}),
            "how many accelerators example.com/a, example.com/b means",
        ),
        (template({"aliyun.com/gpu-mem": 16}), "how many accelerators aliyun.com/gpu-mem means"),
        (template({}, claims=("gpus",)), "the devices of resource claim gpus"),
        (template(resources={"claims": [{"name": "pool"}]}), "the devices of resource claim pool"),
        (template(resources={"limits": {"example.com/widget": 2}}), "how many accelerators example.com/widget means"),
    ],
)
def test_unknown_accelerators_start_one_process(given: dict[str, Any], why: str) -> None:
    found = count_processes(spec(template=given))
    assert found.processes == 1
    assert why in found.uncertain_because
    assert found.uncertain_because.endswith(f"so that auto starts 1 process in each worker. {REMEDY}")


def test_known_device_files_do_not_hide_unknown_accelerators() -> None:
    found = count_processes(spec(template=template({"smarter-devices/fuse": 1, "example.com/widget": 4})))
    assert "how many accelerators example.com/widget means" in found.uncertain_because


def test_devices_with_several_cores_are_uncertain() -> None:
    given = spec(template=template({"aws.amazon.com/neuron": 16}))
    assert "several cores" in count_processes(given).uncertain_because
    certain = count_processes(given, {**ACCELERATORS, "aws.amazon.com/neuron": 2})
    assert (certain.processes, certain.uncertain_because) == (32, "")


def test_network_devices_beside_accelerators_are_no_doubt() -> None:
    found = count_processes(spec(template=template({"nvidia.com/gpu": 8, "openshift.io/mlx": 2}, claims=("nics",))))
    assert (found.processes, found.uncertain_because) == (8, "")


def test_framework_none_starts_one_program_anyway() -> None:
    assert not count_processes(spec(template=template({"example.com/widget": 4}), framework="none")).uncertain_because


@pytest.mark.parametrize(
    ("table", "count"),
    [
        ({"example.com/widget": 1}, 4),
        ({"example.com/widget": 2}, 8),
        ({"example.com/*": 1}, 4),
        ({"example.com/*": 1, "example.com/widget": "worker"}, 1),
        ({"*/widget": "none"}, 1),
    ],
)
def test_table_is_extended(table: AcceleratorTable, count: int) -> None:
    found = count_processes(spec(template=template({"example.com/widget": 4})), {**ACCELERATORS, **table})
    assert (found.processes, found.uncertain_because) == (count, "")


def test_metric_counts_chips_and_no_network_devices() -> None:
    container = template({"google.com/tpu": 4, "rdma/hca": 2, "example.com/widget": 3})["spec"]["containers"][0]
    assert accelerators(container) == 4


def view(table: AcceleratorTable = ACCELERATORS, status: Any = None, **fields: Any) -> JobView:
    metadata = {"uid": "u", "namespace": "lab", "name": "train", "generation": 1, "resourceVersion": "1"}
    body = {"template": template({"example.com/widget": 4}), **fields}
    return job_view({"metadata": metadata, "spec": body, "status": status.dump() if status else {}}, table)


def test_view_has_the_number() -> None:
    assert view({"example.com/widget": 1}).processes == 4
    assert view({"example.com/widget": 1}, processesPerReplica=2).processes == 2


def test_warning_in_condition_and_one_event() -> None:
    first = plan(Snapshot(view()), NOW)
    condition = first.status.condition(C.ACCELERATORS_UNCERTAIN)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", Reason.ACCELERATORS_UNKNOWN)
    assert [(e.type, e.note) for e in first.events] == [("Warning", condition.message)]
    again = plan(Snapshot(view(status=stored(first.status))), NOW)
    assert list(again.events) == []


def test_user_number_clears_the_warning() -> None:
    first = plan(Snapshot(view()), NOW).status
    corrected = plan(Snapshot(view(status=stored(first), processesPerReplica=4)), NOW)
    assert summarize(corrected.status.conditions)[C.ACCELERATORS_UNCERTAIN][0] is False
    assert list(corrected.events) == []


def test_changed_table_keeps_a_group() -> None:
    first = plan(Snapshot(view({"example.com/widget": 1})), NOW).status
    assert first.internal.counted_processes == CountedProcesses(resources="example.com/widget=4", processes=4)
    later = view({"example.com/widget": "worker"}, stored(first))
    assert later.processes == 4


def test_changed_template_is_counted_again() -> None:
    first = plan(Snapshot(view({"example.com/widget": 1})), NOW).status
    later = view({"example.com/widget": 1}, stored(first), template=template({"example.com/widget": 2}))
    assert later.processes == 2


def test_suspended_job_follows_the_table() -> None:
    first = plan(Snapshot(view({"example.com/widget": 1})), NOW).status
    paused = plan(Snapshot(view({"example.com/widget": 1}, stored(first), lifecycle={"suspend": True})), NOW).status
    resumed = view({"example.com/widget": 2}, stored(paused))
    assert resumed.processes == 8
    assert plan(Snapshot(resumed), NOW).status.internal.counted_processes == CountedProcesses(
        resources="example.com/widget=4", processes=8
    )


def test_job_without_extended_resources_stores_nothing() -> None:
    assert plan(Snapshot(view(template=template({"cpu": "4"}))), NOW).status.internal.counted_processes is None
