from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from trainyard_torch.monitoring.communication import Communication, Span, covered, observed, shares

SPANS = st.lists(
    st.tuples(st.integers(-5, 25), st.integers(0, 12)).map(lambda each: Span(each[0], sum(each))), max_size=8
)


def cells(spans: list[Span]) -> set[int]:
    """The whole microseconds from 0 to 20 in which one of these is."""
    return {at for at in range(20) for begin, end in spans if begin <= at < end}


@given(SPANS, SPANS)
def test_what_is_covered_is_counted_once(collectives: list[Span], work: list[Span]) -> None:
    whole = Span(0, 20)
    assert covered(collectives, whole) == len(cells(collectives))
    found = shares(collectives, work, whole)
    assert found.ratio == len(cells(collectives)) / 20
    assert found.exposed == pytest.approx(len(cells(collectives) - cells(work)) / 20)


def event(name: str, begin: float, end: float, **other: Any) -> SimpleNamespace:
    usual = {
        "device_type": SimpleNamespace(name="CPU"),
        "is_async": False,
        "is_user_annotation": False,
        "cpu_children": [],
    }
    return SimpleNamespace(name=name, time_range=SimpleNamespace(start=begin, end=end), **{**usual, **other})


def kernel(name: str, begin: float, end: float, **other: Any) -> SimpleNamespace:
    return event(name, begin, end, device_type=SimpleNamespace(name="CUDA"), **other)


STEPS = [
    event("ProfilerStep*", 0, 60, is_user_annotation=True),
    event("ProfilerStep*", 60, 100, is_user_annotation=True),
]


def test_on_cpu_what_operators_do_hides_gloo() -> None:
    leaf = event("aten::mm", 10, 30)
    events = [
        *STEPS,
        event("DistributedDataParallel.forward", 0, 90, is_user_annotation=True),
        event("aten::linear", 0, 90, cpu_children=[leaf]),
        leaf,
        event("c10d::allreduce_", 20, 60),
        event("gloo:all_reduce", 20, 60, is_async=True, is_user_annotation=True),
    ]
    assert observed(events) == Communication(0.4, 0.3)


def test_on_a_gpu_its_own_time_counts() -> None:
    events = [
        *STEPS,
        event("aten::mm", 0, 100),
        event("gloo:barrier", 0, 100),
        kernel("ProfilerStep#1", 0, 2000),
        kernel("nccl:all_reduce", 0, 2000, is_user_annotation=True),
        kernel("ampere_sgemm_128x64", 1000, 1050),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1040, 1090),
        kernel("Memcpy DtoD (Device -> Device)", 1080, 1100),
    ]
    assert observed(events) == Communication(0.5, 0.3)


def test_without_a_collective_there_is_none() -> None:
    assert observed([*STEPS, event("aten::mm", 10, 30)]) == Communication(0, 0)


def test_unfinished_collective_is_unknown() -> None:
    assert observed([*STEPS, event("c10d::allreduce_", 20, 60)]) is None


def test_without_a_step_nothing_is_known() -> None:
    assert observed([]) is None
    assert observed([event("gloo:barrier", 0, 9)]) is None


def test_a_time_without_length() -> None:
    with pytest.raises(ValueError, match="window must end after it begins"):
        shares([], [], Span(1, 1))
