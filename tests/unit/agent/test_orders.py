"""What a worker does about what the operator says, or does not say."""

from typing import Any

import pytest

from trainyard_agent.orders import Do, Final, News, Order, State, decide, read, waits_at_first
from trainyard_agent.ranks import SettingError

RUNNING, FAILED, WAITING, *_ = State


def news(attempt: int | None = None, *, run: bool = False, final: Final | None = None, silence: float = 0.0) -> News:
    order = None if attempt is None else Order(attempt, run, {})
    return News(order, final, attempt is not None, silence)


@pytest.mark.parametrize(
    ("state", "heard", "then"),
    [
        (RUNNING, news(), Do.GO_ON),
        (RUNNING, news(silence=1e6), Do.GO_ON),
        (RUNNING, news(2, run=True), Do.GO_ON),
        (RUNNING, news(1, run=True), Do.GO_ON),
        (RUNNING, news(3), Do.JOIN),
        (RUNNING, news(3, run=True), Do.JOIN),
        (RUNNING, news(final=Final.REPLACED), Do.GO_ON),
        (RUNNING, news(final=Final.OVER), Do.GO_ON),
        (RUNNING, news(final=Final.OFF), Do.GO_ON),
        (FAILED, news(), Do.GO_ON),
        (FAILED, news(2, run=True), Do.GO_ON),
        (FAILED, news(3, run=True), Do.JOIN),
        (FAILED, news(silence=11), Do.LEAVE),
        (FAILED, news(2, silence=9), Do.GO_ON),
        (FAILED, news(3, silence=11), Do.JOIN),
        (FAILED, news(3, final=Final.OVER), Do.LEAVE),
        (FAILED, news(final=Final.OFF), Do.LEAVE),
        (WAITING, news(2), Do.GO_ON),
        (WAITING, news(2, run=True), Do.START),
        (WAITING, news(1, run=True), Do.GO_ON),
        (WAITING, news(3, run=True), Do.JOIN),
        (WAITING, news(2, silence=11), Do.LEAVE),
        (WAITING, news(2, run=True, final=Final.REPLACED), Do.LEAVE),
    ],
)
def test_at_attempt_2_with_a_patience_of_ten_seconds(state: State, heard: News, then: Do) -> None:
    assert decide(state, 2, heard, 10) is then


@pytest.mark.parametrize(
    ("final", "since", "then"),
    [
        (Final.REPLACED, 29, Do.GO_ON),
        (Final.REPLACED, 31, Do.LEAVE),
        (Final.OVER, 1e6, Do.GO_ON),
        (Final.OFF, 1e6, Do.GO_ON),
    ],
)
def test_who_is_replaced_ends_by_itself_where_no_kubelet_sees_to_it(final: Final, since: float, then: Do) -> None:
    heard = news(final=final)._replace(final_for=since)
    assert decide(RUNNING, 2, heard, 10, grace=30) is then


def test_an_order_is_read() -> None:
    said = {"attempt": 2, "run": True, "environment": {"MASTER_ADDR": "a", "TRAINYARD_ATTEMPT": "1"}, "later": 1}
    assert read(said) == Order(2, True, {"MASTER_ADDR": "a", "TRAINYARD_ATTEMPT": "2"})  # noqa: FBT003 - a field


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        {},
        {"attempt": "2"},
        {"attempt": True},
        {"attempt": 2.0},
        {"attempt": 0},
        {"attempt": -1},
        {"attempt": 10**30},
        {"attempt": float("inf")},
        {"attempt": 2, "run": 1},
        {"attempt": 2, "environment": ["A"]},
        {"attempt": 2, "environment": {"A=B": "c"}},
        {"attempt": 2, "environment": {"": "c"}},
        {"attempt": 2, "environment": {"A\0": "c"}},
        {"attempt": 2, "environment": {"A": "c\0"}},
        {"attempt": 2, "environment": {"A": "\ud800"}},
        {"attempt": 2, "environment": {"A": 1}},
        {"attempt": 2, "environment": {"A": None}},
    ],
)
def test_of_nonsense_there_is_no_order(said: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read(said)


def test_who_waits_at_first() -> None:
    assert waits_at_first({"TRAINYARD_RENDEZVOUS": "wait", "TRAINYARD_COORDINATOR": "https://there"})
    assert not waits_at_first({"TRAINYARD_COORDINATOR": "https://there"})
    with pytest.raises(SettingError):
        waits_at_first({"TRAINYARD_RENDEZVOUS": "wait"})
