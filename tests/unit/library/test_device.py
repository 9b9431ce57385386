"""A process gets the device that its container requested, or says why there is none."""

import pytest

from trainyard_torch.device import (
    REQUESTED_VARIABLE,
    AcceleratorLostError,
    NoGpuSupportError,
    VisibleGpus,
    device_type,
)
from trainyard_torch.process_info import ProcessInfo


def decided(
    visible: int,
    requested: int | None,
    ranks: int = 1,
    wanted: str | None = None,
    *,
    is_mig: bool = False,
    **hiding: str,
) -> str:
    environ = {**hiding, **({} if requested is None else {REQUESTED_VARIABLE: str(requested)})}
    process = ProcessInfo(world_size=ranks, local_world_size=ranks)
    return device_type(process, wanted, environ, VisibleGpus(visible, supported=True, is_mig=is_mig))


@pytest.mark.parametrize(
    ("visible", "requested", "ranks", "wanted", "device"),
    [
        (0, None, 1, None, "cpu"),
        (0, 0, 4, None, "cpu"),
        (8, 8, 8, None, "cuda"),
        (8, 8, 1, None, "cuda"),
        # Seven of eight are enough for seven ranks.
        (7, 8, 7, None, "cuda"),
        (8, None, 8, None, "cuda"),
        (0, 8, 8, "cpu", "cpu"),
        (8, 8, 8, "cpu", "cpu"),
    ],
)
def test_device_of_a_process(visible: int, requested: int | None, ranks: int, wanted: str | None, device: str) -> None:
    assert decided(visible, requested, ranks, wanted) == device


@pytest.mark.parametrize("wanted", [None, "cuda"])
@pytest.mark.parametrize(
    ("visible", "requested", "ranks", "sees"),
    [(0, 1, 1, "sees 0 GPUs"), (7, 8, 8, "sees 7 GPUs"), (1, 8, 8, "sees 1 GPU,"), (0, 1, 4, "sees 0 GPUs")],
)
def test_lost_gpus_end_with_code_94(visible: int, requested: int, ranks: int, sees: str, wanted: str | None) -> None:
    with pytest.raises(AcceleratorLostError, match=f"torch {sees}.* this container requested {requested} ") as raised:
        decided(visible, requested, ranks, wanted)
    assert raised.value.exit_code == 94


def test_torch_without_gpus_ends_with_code_93() -> None:
    process, gpus = ProcessInfo(), VisibleGpus(0, supported=False)
    with pytest.raises(
        NoGpuSupportError, match="requested 1 accelerator, and this torch is built without GPU"
    ) as raised:
        device_type(process, None, {REQUESTED_VARIABLE: "1"}, gpus)
    assert raised.value.exit_code == 93
    assert device_type(process, None, {}, gpus) == "cpu"
    assert device_type(process, "cpu", {REQUESTED_VARIABLE: "1"}, gpus) == "cpu"


@pytest.mark.parametrize("value", ["", "0", "0,1,2"])
def test_hidden_gpus_are_no_fault_of_the_node(value: str) -> None:
    with pytest.raises(ValueError, match=f"CUDA_VISIBLE_DEVICES={value} hides the others"):
        decided(len(value.split(",")) if value else 0, 4, 4, CUDA_VISIBLE_DEVICES=value)
    with pytest.raises(AcceleratorLostError):
        decided(3, 4, 4, CUDA_VISIBLE_DEVICES="0,1,2,3")


def test_mig_slices_count_as_torch_shows_them() -> None:
    assert decided(1, 1, 1, is_mig=True) == "cuda"
    # The operator counts slices as one; with MIG's strategy `single`, they have the name of whole GPUs.
    with pytest.raises(ValueError, match=r"one MIG slice of several\. Set processesPerReplica to 1"):
        decided(1, 2, 2, is_mig=True)
    assert decided(1, 2, 1, is_mig=True) == "cuda"


@pytest.mark.parametrize(("visible", "requested"), [(2, None), (2, 2), (0, None)])
def test_more_processes_than_gpus(visible: int, requested: int | None) -> None:
    with pytest.raises(ValueError, match=f"4 processes in this pod and {visible} GPUs: set processesPerReplica"):
        decided(visible, requested, 4, "cuda")


def test_number_that_is_none() -> None:
    with pytest.raises(ValueError, match=f"{REQUESTED_VARIABLE} must be a non-negative integer, not 'many'"):
        device_type(ProcessInfo(), None, {REQUESTED_VARIABLE: "many"}, VisibleGpus(1, supported=True))
