"""Decide what this worker does next, from what is known of the operator. Pure; the time is given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from trainyard_agent.protocol import AgentState, Order
from trainyard_agent.ranks import SettingError

RENDEZVOUS = "TRAINYARD_RENDEZVOUS"
FIRST_ANSWER_SECONDS = 20.0
"""How long a worker with a failure waits for the operator's very first answer: the operator may look for the cause for 15 seconds."""
SILENCE_SECONDS = 600.0
"""How long it waits for an operator that has answered before."""


class Final(Enum):
    """Why the operator is asked no more."""

    REPLACED = "Replaced"
    """Another pod has taken this worker's index."""
    OVER = "Over"
    """The job has finished."""
    OFF = "off"
    """The operator knows nothing of restarts in place, or cannot be asked."""


class OperatorView(NamedTuple):
    """What is known of the operator."""

    order: Order | None
    final: Final | None
    answered: bool
    """Whether it has ever given an order."""
    silence: float
    """Seconds since then; 0 while a request is pending."""
    final_for: float = 0.0
    """Seconds since the final answer came."""


class NextAction(Enum):
    """What the worker does next."""

    CONTINUE = "go on"
    JOIN = "stop what runs, and wait for the attempt of the order"
    START = "start the ranks"
    EXIT = "exit"


def next_action(
    state: AgentState, attempt: int, view: OperatorView, patience: float, grace: float = math.inf
) -> NextAction:
    """Return what the worker does next.

    `patience`: seconds for which the worker waits for a silent operator, counted from the start of the wait at the earliest.
    `grace`: the pod's termination grace period in seconds.
    """
    order, is_idle = view.order, state is not AgentState.RUNNING
    if view.final is not None:
        # Running ranks get the time that the pod's deletion gives them, to write a checkpoint for example. Where the kubelet that
        # would stop them is dead, the agent has to: other ranks train in their place.
        outlived = view.final is Final.REPLACED and view.final_for > grace
        return NextAction.EXIT if is_idle or outlived else NextAction.CONTINUE
    if order is not None and order.attempt > attempt:
        return NextAction.JOIN
    if state is AgentState.WAITING and order is not None and order.attempt == attempt and order.run:
        return NextAction.START
    return NextAction.EXIT if is_idle and view.silence > patience else NextAction.CONTINUE


def waits_at_start(environment: Mapping[str, str]) -> bool:
    """Return whether the ranks must not start before the operator orders it. Raises SettingError."""
    value = environment.get(RENDEZVOUS, "")
    if value not in {"", "wait"}:
        raise SettingError(f"{RENDEZVOUS} must be wait, or not be set, got {value!r}")
    if value and not environment.get("TRAINYARD_COORDINATOR"):
        raise SettingError(f"{RENDEZVOUS} is wait, but TRAINYARD_COORDINATOR is not set, so no order can come")
    return bool(value)
