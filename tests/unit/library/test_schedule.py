import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from trainyard_torch.optim.schedule import Schedule

EPOCH = 1_281_167
GOYAL = Schedule(rate=0.1, batch=8192, warmup=5 * EPOCH)


def test_imagenet_in_an_hour() -> None:
    assert GOYAL.peak == pytest.approx(3.2)
    assert GOYAL.at(0) == 0.1
    assert GOYAL.at(5 * EPOCH) == GOYAL.at(90 * EPOCH) == GOYAL.peak
    steps = [GOYAL.at(step * 8192) for step in range(5 * EPOCH // 8192)]
    rises = [after - before for before, after in pairwise(steps)]
    assert min(rises) == pytest.approx(max(rises))


def test_by_the_root() -> None:
    assert Schedule(rate=0.002, batch=1024, reference=256, scaling="sqrt").peak == pytest.approx(0.004)
    assert Schedule(rate=0.002, batch=1024, scaling="none").peak == 0.002


def test_along_a_cosine() -> None:
    schedule = Schedule(rate=1.0, batch=256, warmup=100, begin=0.0, then="cosine", total=300, end=0.2)
    found = [schedule.at(samples) for samples in (0, 50, 100, 200, 300, 999)]
    assert found == pytest.approx([0.0, 0.5, 1.0, 0.6, 0.2, 0.2])
    assert schedule.at(150) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)


def test_a_small_batch_does_not_begin_above_its_peak() -> None:
    assert Schedule(rate=0.1, batch=64, warmup=1000).at(0) == pytest.approx(0.025)


@given(
    batch=st.integers(1, 10**6),
    warmup=st.integers(0, 10**9),
    after=st.integers(1, 10**9),
    samples=st.integers(0, 10**10),
    then=st.sampled_from(["constant", "cosine"]),
)
def test_always_between_its_ends(batch: int, warmup: int, after: int, samples: int, then: Any) -> None:
    total = warmup + after if then == "cosine" else None
    schedule = Schedule(rate=0.1, batch=batch, warmup=warmup, then=then, total=total)
    assert 0 <= schedule.at(samples) <= schedule.peak * (1 + 1e-12)
    assert schedule.at(samples) == pytest.approx(schedule.factor(samples) * schedule.peak)
    # No jump: a sample more changes little, but in a warm-up of few samples.
    assert abs(schedule.at(samples + 1) - schedule.at(samples)) <= 2 * schedule.peak / min(max(warmup, 1), after)


def test_an_optimizer_is_set() -> None:
    optimizer = SimpleNamespace(param_groups=[{"lr": 7}, {"lr": 7, "lr_scale": 0.5}])
    assert Schedule(rate=0.1, batch=512).set(optimizer, 1000) == pytest.approx(0.2)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.2, 0.1])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rate": 0}, "rate must be positive"),
        ({"rate": math.nan}, "rate must be positive"),
        ({"batch": 0}, "batch must be positive"),
        ({"warmup": -1}, "warmup must be from 0"),
        ({"begin": -0.1}, "begin must be from 0"),
        ({"scaling": "cubic"}, "scaling must be one of linear, sqrt, none, and is 'cubic'"),
        ({"then": "step"}, "then must be one of constant, cosine"),
        ({"then": "cosine"}, "cosine needs total"),
        ({"then": "cosine", "warmup": 9, "total": 9}, "more samples than warmup"),
        ({"total": 5}, "a constant rate has no total"),
    ],
)
def test_what_makes_no_sense(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Schedule(**{"rate": 0.1, "batch": 8} | wrong)
    with pytest.raises(ValueError, match="samples must be from 0"):
        Schedule(rate=0.1, batch=8).at(-1)
