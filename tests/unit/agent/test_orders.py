"""What a worker does next, by its state and the operator's order."""

import pytest

from trainyard_agent.orders import Final, NextAction, OperatorView, next_action, waits_at_start
from trainyard_agent.protocol import AgentState, Order
from trainyard_agent.ranks import SettingError

RUNNING, FAILED, WAITING, *_ = AgentState


def view(
    attempt: int | None = None, *, run: bool = False, final: Final | None = None, silence: float = 0.0
) -> OperatorView:
    order = None if attempt is None else Order(attempt, run, {})
    return OperatorView(order, final, attempt is not None, silence)


@pytest.mark.parametrize(
    ("state", "seen", "expected"),
    [
        (RUNNING, view(), NextAction.CONTINUE),
        (RUNNING, view(silence=1e6), NextAction.CONTINUE),
        (RUNNING, view(2, run=True), NextAction.CONTINUE),
        (RUNNING, view(1, run=True), NextAction.CONTINUE),
        (RUNNING, view(3), NextAction.JOIN),
        (RUNNING, view(3, run=True), NextAction.JOIN),
        (RUNNING, view(final=Final.REPLACED), NextAction.CONTINUE),
        (RUNNING, view(final=Final.OVER), NextAction.CONTINUE),
        (RUNNING, view(final=Final.OFF), NextAction.CONTINUE),
        (FAILED, view(), NextAction.CONTINUE),
        (FAILED, view(2, run=True), NextAction.CONTINUE),
        (FAILED, view(3, run=True), NextAction.JOIN),
        (FAILED, view(silence=11), NextAction.EXIT),
        (FAILED, view(2, silence=9), NextAction.CONTINUE),
        (FAILED, view(3, silence=11), NextAction.JOIN),
        (FAILED, view(3, final=Final.OVER), NextAction.EXIT),
        (FAILED, view(final=Final.OFF), NextAction.EXIT),
        (WAITING, view(2), NextAction.CONTINUE),
        (WAITING, view(2, run=True), NextAction.START),
        (WAITING, view(1, run=True), NextAction.CONTINUE),
        (WAITING, view(3, run=True), NextAction.JOIN),
        (WAITING, view(2, silence=11), NextAction.EXIT),
        (WAITING, view(2, run=True, final=Final.REPLACED), NextAction.EXIT),
    ],
)
def test_next_action_follows_state_and_order(state: AgentState, seen: OperatorView, expected: NextAction) -> None:
    assert next_action(state, 2, seen, 10) is expected


@pytest.mark.parametrize(
    ("final", "since", "expected"),
    [
        (Final.REPLACED, 29, NextAction.CONTINUE),
        (Final.REPLACED, 31, NextAction.EXIT),
        (Final.OVER, 1e6, NextAction.CONTINUE),
        (Final.OFF, 1e6, NextAction.CONTINUE),
    ],
)
def test_replaced_worker_exits_after_grace_period(final: Final, since: float, expected: NextAction) -> None:
    seen = view(final=final)._replace(final_for=since)
    assert next_action(RUNNING, 2, seen, 10, grace=30) is expected


def test_replacement_waits_at_start() -> None:
    assert waits_at_start({"TRAINYARD_RENDEZVOUS": "wait", "TRAINYARD_COORDINATOR": "https://there"})
    assert not waits_at_start({"TRAINYARD_COORDINATOR": "https://there"})
    with pytest.raises(SettingError):
        waits_at_start({"TRAINYARD_RENDEZVOUS": "wait"})
