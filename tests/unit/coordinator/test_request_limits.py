"""Token buckets of pods and namespaces."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.support.jobs import job
from tests.support.running_coordinator import RunningCoordinator
from trainyard.coordinator import request_limits
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.coordinator.request_limits import (
    COMMON_SHARES,
    NAMESPACE_BURST,
    POD_BURST,
    RateLimits,
    RequestLimits,
    WorkerIndex,
)
from trainyard.domain.state.worker_views import PodView

REPORT = {"attempt": 1, "ranks": {"1": {"step": 7}}}
ENDED = {"attempt": 1, "state": "ended"}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(limits: RateLimits, key: str, tries: int, shares: int = 1) -> int:
    return sum(limits.take(key, shares) == 0.0 for _ in range(tries))


def test_burst_is_followed_by_a_rate() -> None:
    clock = Clock()
    limits = RateLimits(2.0, 5.0, clock)
    assert taken(limits, "a", 20) == 5
    assert limits.take("a") == pytest.approx(0.5)
    clock.now += 1.0
    assert taken(limits, "a", 20) == 2
    clock.now += 1000.0
    assert taken(limits, "a", 20) == 5


def test_keys_have_buckets_of_their_own() -> None:
    limits = RateLimits(2.0, 5.0, Clock())
    assert [taken(limits, key, 20) for key in "ab"] == [5, 5]


def test_shares_multiply_rate_and_burst() -> None:
    clock = Clock()
    limits = RateLimits(2.0, 5.0, clock)
    assert taken(limits, "a", 100, shares=3) == 15
    clock.now += 1.0
    assert taken(limits, "a", 100, shares=3) == 6


def test_number_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "MAX_KEYS", 3)
    limits = RateLimits(1.0, 1.0, Clock())
    for key in "abcad":
        limits.take(key)
    # The key that was used before all others is forgotten, and the others are not.
    assert [limits.take(key) == 0.0 for key in "cadb"] == [False, False, False, True]


@given(st.lists(st.floats(min_value=0.0, max_value=3.0), max_size=60))
def test_no_window_exceeds_burst_and_rate(pauses: list[float]) -> None:
    clock, times = Clock(), list[float]()
    limits = RateLimits(2.0, 3.0, clock)
    for pause in pauses:
        clock.now += pause
        if limits.take("a") == 0.0:
            times.append(clock.now)
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert last - first + 1 <= 3.0 + 2.0 * (times[last] - times[first]) + 1e-6


def test_pods_of_other_namespaces_keep_their_share() -> None:
    pods = job(1).running().pods
    noisy = [replace(pods[0], uid=f"noisy-{n}", namespace="noisy") for n in range(50)]
    limits = RequestLimits(WorkerIndex(lambda: [*noisy, *pods], Clock()), Clock())

    count = sum(passes(limits, pod) for pod in noisy for _ in range(100))
    assert count == int(NAMESPACE_BURST) * (COMMON_SHARES // 2 + 50)
    assert passes(limits, pods[0])


def test_many_namespaces_gain_a_tenant_little() -> None:
    """One worker in each of 200 namespaces, beside 200 workers in one namespace: the tenant may ask twice as often at most."""
    (pod,) = job(1).running().pods

    def accepted(namespaces: int) -> int:
        clock = Clock()
        pods = [replace(pod, uid=f"{n}", namespace=f"evil-{n % namespaces}") for n in range(200)]
        limits = RequestLimits(WorkerIndex(lambda: [*pods, pod], clock), clock)
        count = 0
        for second in range(40):
            clock.now += 1.0
            # After the bursts of the first seconds.
            count += sum(passes(limits, each) for each in pods for _ in range(5)) if second > 20 else 0
            assert passes(limits, pod), "the honest worker asks once a second"
        return count

    assert accepted(200) <= 2.1 * accepted(1)


def passes(limits: RequestLimits, pod: PodView) -> bool:
    try:
        limits.check(pod)
    except RefusedError as refused:
        return refused.reason is not RejectionReason.TOO_OFTEN
    return True


def test_index_counts_workers_once_a_second() -> None:
    clock, pods, looks = Clock(), list(job(3).running().pods), list[int]()

    def listed() -> list[Any]:
        looks.append(1)
        return [replace(pod, ip="10.0.0.7", namespace="lab") for pod in pods]

    index = WorkerIndex(listed, clock)
    assert (index.at("10.0.0.7"), index.at(""), index.at("10.0.0.8"), index.in_namespace("lab")) == (3, 0, 0, 3)
    assert len(looks) == 1
    pods.pop()
    clock.now += 1.0
    assert (index.at("10.0.0.7"), len(looks)) == (2, 2)


@pytest.mark.parametrize(("path", "body"), [("/v1/report", REPORT), ("/v1/sync", ENDED)])
async def test_request_beyond_the_burst_is_refused(coordinator: RunningCoordinator, path: str, body: object) -> None:
    # More than there are tokens: the bucket fills up meanwhile.
    answers = [await coordinator.post(body, path=path)]
    while answers[-1][0] == 200 and len(answers) < 10 * POD_BURST:
        answers.append(await coordinator.post(body, path=path))
    status, refusal = answers[-1]
    assert len(answers) > POD_BURST
    assert (status, refusal["reason"]) == (429, "TooOften")
    assert 0 < refusal["after"] <= 1.0
    assert (await coordinator.post(body, coordinator.token("pod-2-1"), path))[0] != 429
