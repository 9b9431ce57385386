"""What is known of a GPU without waiting for it, with a pretend one; and how much a model computes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from tests.library.support.processes import run
from trainyard_agent import report
from trainyard_torch.monitoring.deferred import WAITING, DeferredScalars, Worked, check
from trainyard_torch.monitoring.flops import counted, peak, transformer, utilisation
from trainyard_torch.monitoring.monitor import Monitor
from trainyard_torch.monitoring.profiler import ProfilerConfig


class Later:
    """A number that is on its way until it is let go."""

    def __init__(self, value: float) -> None:
        self._value, self.here = value, False

    def ready(self) -> bool:
        return self.here

    def value(self) -> float:
        assert self.here, "who asks too early waits for the GPU"
        return self._value


def test_a_number_is_reported_once_it_arrived() -> None:
    late, numbers = DeferredScalars(), [Later(float(number)) for number in range(3)]
    for number in numbers:
        late.wait(number)
    assert late.newest is None
    numbers[1].here = True
    assert late.newest is None, "in their order"
    numbers[0].here = True
    assert late.arrived() == [0, 1]
    assert late.arrived() == []
    assert late.newest == 1


def test_not_too_many_are_under_way() -> None:
    late, numbers = DeferredScalars(), [Later(float(number)) for number in range(WAITING + 5)]
    for number in numbers:
        late.wait(number)
        number.here = True
    assert late.arrived() == [*range(WAITING)]


def test_host_number_is_available_at_once() -> None:
    late = DeferredScalars()
    for given, expected in (
        (1.5, 1.5),
        (torch.tensor(2.5, requires_grad=True), 2.5),
        (None, 2.5),
        (torch.ones(1, 1), 1),
    ):
        late.put("loss", given)
        assert late.newest == expected
    changed = torch.tensor(3.0)
    late.put("loss", changed)
    changed.add_(1)
    assert late.newest == 3


class Event:
    def __init__(self, at: float, *, happened: bool = True) -> None:
        self.at, self.happened = at, happened

    def query(self) -> bool:
        return self.happened

    def elapsed_time(self, end: "Event") -> float:
        return end.at - self.at


def test_own_work_is_that_of_host_and_gpu() -> None:
    last = Event(70, happened=False)
    spans: Any = [(Event(0), Event(20)), (Event(50), last)]
    worked = Worked(0.5, spans)
    assert not worked.ready()
    last.happened = True
    assert worked.ready()
    assert worked.value() == pytest.approx(0.54)


class Stream(Event):
    """Events that happen one millisecond after the other, as the GPU comes to them: not before it is let go."""

    made: ClassVar[list["Stream"]] = []

    def __init__(self, **_: Any) -> None:
        super().__init__(0, happened=False)

    def record(self) -> None:
        self.at = float(len(self.made))
        self.made.append(self)


def test_gpu_compute_time_is_reported_a_step_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Stream)
    monkeypatch.setattr(Stream, "made", [])
    monkeypatch.setenv(report.FILE_VARIABLE, str(tmp_path / "progress"))
    monitor = Monitor(device="cuda", profiler=ProfilerConfig(signal=False))

    def step(number: int) -> float | None:
        for _ in range(2):
            with monitor.phase("forward"), monitor.phase("forward"):
                pass
        with monitor.phase("backward"):
            pass
        with monitor.phase("evaluate"), monitor.phase("forward"):
            pass
        monitor.step(number)
        message = report.read(str(tmp_path / "progress"))
        assert message
        return message.compute_seconds

    def arrive() -> None:
        for event in Stream.made:
            event.happened = True

    assert [step(1), step(2)] == [None, None], "the first one compiles, the second is not done yet"
    arrive()
    assert step(3) == pytest.approx(0.002, abs=0.0005), "two forwards of a millisecond each"
    assert len(Stream.made) == 12
    assert len(monitor._meter._compute) == 1, "nothing is reported of the first step"
    assert monitor.snapshot().compute_seconds == pytest.approx(0.002, abs=0.0005)


def spread() -> str:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    norm = distribute_tensor(torch.ones(1), mesh, [Shard(0)])
    with pytest.raises(ValueError, match="norm is a DTensor") as error:
        check("norm", norm)
    return str(error.value)


def test_number_distributed_over_processes_is_none(tmp_path: Any) -> None:
    assert run(1, tmp_path, spread) == [
        "norm is a DTensor, spread over processes: give norm.full_tensor(), on all of them"
    ]


def test_what_a_step_computes_is_counted() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32, bias=False), torch.nn.ReLU(), torch.nn.Linear(32, 4, bias=False)
    )
    forward = 2 * 10 * (16 * 32 + 32 * 4)
    # Backward: the gradient of each weight, and of the input of the second layer; none is needed of the first.
    backward = forward + 2 * 10 * 32 * 4
    assert counted(lambda: model(torch.ones(10, 16)).sum().backward()) == forward + backward


def test_a_transformer_by_its_formula() -> None:
    """GPT-3 of the paper: 175e9 parameters, 96 layers, 96 heads of 128, sequences of 2048."""
    assert transformer(175 * 10**9, 96, 96 * 128, 2048) == 6 * 175 * 10**9 + 12 * 96 * 12288 * 2048


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.4),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        ("NVIDIA H20", 148),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("Tesla V100-SXM2-16GB", 125),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("AMD Instinct MI300X", 1307.4),
        ("NVIDIA B300 SXM6 AC", 2250),
        ("NVIDIA GB300", 2500),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 503.8),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA Z999", None),
        ("", None),
    ],
)
def test_the_peak_of_a_device(name: str, teraflops: float | None) -> None:
    assert peak(name) == (teraflops and teraflops * 1e12)


@pytest.mark.parametrize(
    ("number_format", "teraflops"), [("tf32", 494.7), ("bf16", 989.4), ("fp16", 989.4), ("fp8", 1978.8), ("fp32", None)]
)
def test_the_peak_depends_on_the_format(number_format: str, teraflops: float | None) -> None:
    assert peak("NVIDIA H100 80GB HBM3", number_format) == (teraflops and teraflops * 1e12)


def test_utilisation_is_a_share_of_the_peak() -> None:
    assert utilisation(flops=50e12, seconds=0.5, peak=400e12) == 0.25


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: counted(lambda: None),
            "no floating-point operation was counted: give a function that does a whole step",
        ),
        (lambda: transformer(0, 1, 1, 1), "parameters must be from 1 on, got 0"),
        (lambda: transformer(1, 1, 1, -1), "sequence must be from 1 on, got -1"),
        (lambda: utilisation(1, 0, 1), "seconds must be positive, got 0"),
        (lambda: utilisation(1, 1, float("nan")), "peak must be positive, got nan"),
    ],
)
def test_values_that_make_no_sense(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()
