import math
import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from trainyard_torch.monitoring.meter import WINDOW
from trainyard_torch.monitoring.metrics import METRICS, PREFIX
from trainyard_torch.monitoring.rank_metrics import RankMetrics

PAGE = Path(__file__).parents[3] / "docs/training/monitoring.md"


def reading(rank: int = 0, **fields: Any) -> RankMetrics:
    return RankMetrics(**{"rank": rank, "step": 7, "time": 1.5, "steps": 5, **fields})


def exported(name: str, *readings: RankMetrics) -> dict[tuple[str, ...], float]:
    (metric,) = [metric for metric in METRICS if metric.name == PREFIX + name]
    return {sample.labels: sample.value for sample in metric.samples(readings)}


def test_what_differs_between_ranks_bears_their_number() -> None:
    two = (reading(4, step_seconds=0.5, memory={"peak": 9.0}), reading(5, step=6))
    assert exported("step", *two) == {("4",): 7, ("5",): 6}
    assert exported("step_seconds", *two) == {("4",): 0.5}, "what is not known is not told"
    assert exported("device_memory_peak_bytes", *two) == {("4",): 9}
    assert exported("phase_seconds_total", reading(4, phases={"data": 1.0, "other": 2.0})) == {
        ("4", "data"): 1,
        ("4", "other"): 2,
    }


def test_numbers_of_a_pod_are_combined() -> None:
    two = (
        reading(0, samples_per_second=10, mfu=0.4, loss=2.0, grad_norm=1.0),
        reading(1, samples_per_second=30, mfu=0.5, loss=3.0, grad_norm=7.0),
        reading(2),
    )
    names = ("samples_per_second", "mfu_ratio", "loss", "gradient_norm", "ranks", "tokens_per_second")
    assert [exported(name, *two).get(()) for name in names] == [40, 0.45, 2.5, 7, 3, None]


@pytest.mark.parametrize("name", ["loss", "gradient_norm"])
@pytest.mark.parametrize("order", [1, -1])
def test_missing_number_of_one_rank_is_visible(name: str, order: int) -> None:
    two = [reading(0, loss=1.0, grad_norm=1.0), reading(1, loss=math.nan, grad_norm=math.nan)][::order]
    assert math.isnan(exported(name, *two)[()])


def test_names_are_as_prometheus_has_them() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"trainyard_training_[a-z]+(_[a-z]+)*", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.kind == "counter" or set(metric.labels) <= {"rank"}
        assert metric.documentation.endswith(".")
        if "last 64" in metric.documentation:
            assert WINDOW == 64


def test_no_rank_no_series() -> None:
    assert [sample for metric in METRICS for sample in metric.samples([])] == []


def test_the_page_has_the_same_table() -> None:
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.documentation} |"
        for metric in METRICS
    ]
    assert [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{PREFIX}")] == rows


FULL = reading(3, loss=math.inf, phases={"data": 0.25}, memory={"host": 5.0}, mfu=0.5, communication=0.1)


def test_a_reading_arrives_as_it_was() -> None:
    assert RankMetrics.parse(FULL.text()) == FULL
    assert RankMetrics.parse(FULL.text() + b"of a longer one before") == FULL


def test_a_reading_that_is_torn_is_none() -> None:
    text, other = FULL.text(), reading(3, step=8, loss=1.0).text()
    for at in range(len(text)):
        assert RankMetrics.parse(text[:at]) is None
        # A digit of the checksum may be written in two ways: then it is the same reading.
        assert RankMetrics.parse(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]) in [None, FULL]
    for at in range(1, len(other)):
        assert RankMetrics.parse(other[:at] + text[at:]) in [None, FULL], "the one is written over the other"


@pytest.mark.parametrize("text", [b"", b"\n", b"0 0\n", b"00000000 0\n", b"x y z\n{}", b"\xff\xfe\n", b"1 -1\n{}"])
def test_nonsense_is_no_reading(text: bytes) -> None:
    assert RankMetrics.parse(text) is None


def test_a_reading_of_another_release_is_none() -> None:
    later = FULL.text().split(b"\n", 1)[1].replace(b'"format": 1', b'"format": 2')
    assert RankMetrics.parse(b"%08x %d\n%s" % (zlib.crc32(later), len(later), later)) is None
