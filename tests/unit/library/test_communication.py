import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from trainyard_torch.monitoring import communication
from trainyard_torch.monitoring.communication import (
    Communication,
    Span,
    TraceEvent,
    covered,
    events_of,
    observed,
    shares,
)

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


def event(name: str, begin: float, end: float, category: str = "cpu_op", thread: str = "1") -> TraceEvent:
    return TraceEvent(name, category, thread, Span(begin, end))


def mark(name: str, begin: float, end: float, **other: Any) -> TraceEvent:
    return event(name, begin, end, "user_annotation", **other)


def kernel(name: str, begin: float, end: float, category: str = "kernel") -> TraceEvent:
    return event(name, begin, end, category, "stream 7")


def found_in(*events: TraceEvent) -> Communication | None:
    return observed(lambda: events)


STEPS = [mark("ProfilerStep#1", 0, 60), mark("ProfilerStep#2", 60, 100)]


def test_on_cpu_what_operators_do_hides_gloo() -> None:
    found = found_in(
        *STEPS,
        mark("DistributedDataParallel.forward", 0, 55),
        event("aten::linear", 0, 50),
        event("aten::mm", 10, 30),
        event("c10d::allreduce_", 52, 54),
        event("aten::mul", 70, 75, thread="2"),
        mark("gloo:all_reduce", 20, 60, thread="9"),
    )
    assert found == Communication(0.4, 0.3)


def test_on_a_gpu_its_own_time_counts() -> None:
    found = found_in(
        *STEPS,
        event("aten::mm", 0, 100),
        mark("gloo:barrier", 0, 100),
        kernel("ProfilerStep#1", 0, 2000),
        kernel("nccl:all_reduce", 0, 2000, "gpu_user_annotation"),
        kernel("ampere_sgemm_128x64", 1000, 1050),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1040, 1090),
        kernel("Memcpy DtoD (Device -> Device)", 1080, 1100, "gpu_memcpy"),
    )
    assert found == Communication(0.5, 0.3)


def test_without_a_collective_there_is_none() -> None:
    assert found_in(*STEPS, event("aten::mm", 10, 30)) == Communication(0, 0)


def test_unfinished_collective_is_unknown() -> None:
    assert found_in(*STEPS, event("c10d::allreduce_", 20, 60)) is None


def test_without_a_step_nothing_is_known() -> None:
    assert found_in() is None
    assert found_in(mark("gloo:barrier", 0, 9)) is None


def written(*names: str) -> str:
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 10.5 * at, "dur": 2.25, "args": {"a": [1]}}
        for at, name in enumerate(names)
    ]
    others = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "]}"}},
        {"ph": "X", "cat": "fwdbwd", "name": "x", "pid": 1, "tid": 0, "ts": 0, "dur": 1},
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": [*others, *events], "traceName": "x"}, indent=1)


@pytest.mark.parametrize("characters", [1, 7, 1 << 20], ids=["by character", "in small pieces", "at once"])
def test_events_are_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch, characters: int) -> None:
    monkeypatch.setattr(communication, "CHUNK_CHARACTERS", characters)
    events = [*events_of(io.StringIO(written("gemm \u00e9", "ncclX")))]
    assert events == [
        TraceEvent("gemm \u00e9", "kernel", "7", Span(0, 2.25)),
        TraceEvent("ncclX", "kernel", "7", Span(10.5, 12.75)),
    ]


@pytest.mark.parametrize("length", [0, 10, 200, 400])
def test_incomplete_trace_raises(length: int) -> None:
    with pytest.raises(ValueError, match="the trace is not complete"):
        [*events_of(io.StringIO(written("gemm", "ncclX")[:length]))]


def test_program_needs_neither_torch_nor_the_library(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(written("gemm", "ncclX"))
    command = [sys.executable, "-I", "-X", "importtime", communication.__file__, str(tmp_path / "trace.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shares_of = json.loads(done.stdout)
    assert shares_of == {"ratio": pytest.approx(2.25 / 12.75), "exposed": pytest.approx(2.25 / 12.75)}
    assert not [line for line in done.stderr.splitlines() if "torch" in line]


def test_a_time_without_length() -> None:
    with pytest.raises(ValueError, match="window must end after it begins"):
        shares([], [], Span(1, 1))
