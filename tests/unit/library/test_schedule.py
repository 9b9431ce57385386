import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from trainyard_torch.optim.schedule import LRSchedule

EPOCH = 1_281_167
GOYAL = LRSchedule(base_lr=0.1, batch_size=8192, warmup_samples=5 * EPOCH)


def test_imagenet_in_an_hour() -> None:
    assert GOYAL.peak_lr == pytest.approx(3.2)
    assert GOYAL.at(0) == 0.1
    assert GOYAL.at(5 * EPOCH) == GOYAL.at(90 * EPOCH) == GOYAL.peak_lr
    steps = [GOYAL.at(step * 8192) for step in range(5 * EPOCH // 8192)]
    rises = [after - before for before, after in pairwise(steps)]
    assert min(rises) == pytest.approx(max(rises))


def test_by_the_root() -> None:
    assert LRSchedule(
        base_lr=0.002, batch_size=1024, reference_batch_size=256, scaling="sqrt"
    ).peak_lr == pytest.approx(0.004)
    assert LRSchedule(base_lr=0.002, batch_size=1024, scaling="none").peak_lr == 0.002


def test_along_a_cosine() -> None:
    schedule = LRSchedule(
        base_lr=1.0, batch_size=256, warmup_samples=100, start_lr=0.0, decay="cosine", total_samples=300, end_lr=0.2
    )
    found = [schedule.at(samples) for samples in (0, 50, 100, 200, 300, 999)]
    assert found == pytest.approx([0.0, 0.5, 1.0, 0.6, 0.2, 0.2])
    assert schedule.at(150) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)


def test_small_batch_does_not_start_above_peak() -> None:
    assert LRSchedule(base_lr=0.1, batch_size=64, warmup_samples=1000).at(0) == pytest.approx(0.025)


@given(
    batch=st.integers(1, 10**6),
    warmup=st.integers(0, 10**9),
    after=st.integers(1, 10**9),
    samples=st.integers(0, 10**10),
    then=st.sampled_from(["constant", "cosine"]),
)
def test_always_between_its_ends(batch: int, warmup: int, after: int, samples: int, then: Any) -> None:
    total = warmup + after if then == "cosine" else None
    schedule = LRSchedule(base_lr=0.1, batch_size=batch, warmup_samples=warmup, decay=then, total_samples=total)
    assert 0 <= schedule.at(samples) <= schedule.peak_lr * (1 + 1e-12)
    assert schedule.at(samples) == pytest.approx(schedule.factor(samples) * schedule.peak_lr)
    # No jump: a sample more changes little, but in a warm-up of few samples.
    assert abs(schedule.at(samples + 1) - schedule.at(samples)) <= 2 * schedule.peak_lr / min(max(warmup, 1), after)


def test_an_optimizer_is_set() -> None:
    optimizer = SimpleNamespace(param_groups=[{"lr": 7}, {"lr": 7, "lr_scale": 0.5}])
    assert LRSchedule(base_lr=0.1, batch_size=512).apply(optimizer, 1000) == pytest.approx(0.2)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"base_lr": 0}, "base_lr must be positive"),
        ({"base_lr": math.nan}, "base_lr must be positive"),
        ({"batch_size": 0}, "batch_size must be positive"),
        ({"warmup_samples": -1}, "warmup_samples must be from 0"),
        ({"start_lr": -0.1}, "start_lr must be from 0"),
        ({"scaling": "cubic"}, "scaling must be one of linear, sqrt, none, got 'cubic'"),
        ({"decay": "step"}, "decay must be one of constant, cosine"),
        ({"decay": "cosine"}, "cosine needs total_samples"),
        ({"decay": "cosine", "warmup_samples": 9, "total_samples": 9}, "more than warmup_samples"),
        ({"total_samples": 5}, "a constant rate takes no total_samples"),
    ],
)
def test_what_makes_no_sense(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LRSchedule(**{"base_lr": 0.1, "batch_size": 8} | wrong)
    with pytest.raises(ValueError, match="samples must be from 0"):
        LRSchedule(base_lr=0.1, batch_size=8).at(-1)
