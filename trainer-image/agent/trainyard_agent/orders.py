"""What the operator wants of this worker, and what follows from it. Pure; the time is given."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, Optional

from trainyard_agent.ranks import MOST_ATTEMPTS, SettingError

RENDEZVOUS = "TRAINYARD_RENDEZVOUS"
FIRST_ANSWER_SECONDS = 20.0
"""How long a worker with a failure waits for the first answer of all: the operator may be one that gives none, or look for the cause for 15."""
SILENCE_SECONDS = 600.0
"""How long it waits for an operator that has answered before."""
MOST_STEPS = 2**53
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class State(Enum):
    """What the operator is told of this worker."""

    RUNNING = "running"
    """The ranks of the attempt run."""
    FAILED = "failed"
    """One of them has failed."""
    WAITING = "waiting"
    """Nothing runs; the attempt may begin."""
    RESTARTING = "restarting"
    """Nothing runs, and the container is about to end, to start anew in the same pod."""
    ENDED = "ended"
    """All is done, and the container about to end."""


class Order(NamedTuple):
    """The operator's answer."""

    attempt: int
    run: bool
    environment: Mapping[str, str]
    """What that attempt's ranks have beside what is inherited."""
    stops: bool = False
    """Whether all ranks of the attempt come to an end together."""
    stop_at: Optional[int] = None  # noqa: UP045 - Python 3.9
    """After this step, once it is known."""
    restart: bool = False
    """Whether the container is to start anew before the attempt begins."""
    hung: bool = False
    """Whether the attempt before has ended because a rank hung."""


class Final(Enum):
    """After this the operator is asked no more."""

    REPLACED = "Replaced"
    """Another pod has this worker's place."""
    OVER = "Over"
    """The job has ended."""
    OFF = "off"
    """It knows nothing of restarts in place, or cannot be asked."""


class News(NamedTuple):
    """What is known of the operator."""

    order: Order | None
    final: Final | None
    answered: bool
    """Whether it has ever given an order."""
    silence: float
    """Seconds since then; 0 while a question lies with it."""
    final_for: float = 0.0
    """Seconds since the final word came."""


class Do(Enum):
    """What the worker does next."""

    GO_ON = "go on"
    JOIN = "stop what runs, and wait for the attempt of the order"
    START = "start the ranks"
    LEAVE = "end"


def decide(state: State, attempt: int, news: News, patience: float, grace: float = math.inf) -> Do:
    """What follows.

    `patience`: seconds of silence that are borne, which begin no earlier than the wait. `grace`: seconds that the pod gets to end.
    """
    order, at_rest = news.order, state is not State.RUNNING
    if news.final is not None:
        # Ranks that run get the time that the pod's deletion gives them: to write a checkpoint, say. Where the kubelet that would end
        # them is dead, nobody else does, and others train in their place.
        outlived = news.final is Final.REPLACED and news.final_for > grace
        return Do.LEAVE if at_rest or outlived else Do.GO_ON
    if order is not None and order.attempt > attempt:
        return Do.JOIN
    if state is State.WAITING and order is not None and order.attempt == attempt and order.run:
        return Do.START
    return Do.LEAVE if at_rest and news.silence > patience else Do.GO_ON


def read(said: object) -> Order:
    """An order, of what was answered. Raises ValueError."""
    if not isinstance(said, dict):
        raise ValueError("the answer is no object")  # noqa: TRY004 - of what came, not of what it was called with
    attempt, run, environment = said.get("attempt"), said.get("run", False), said.get("environment") or {}
    restart, hung = said.get("restart", False), said.get("hung", False)
    if type(attempt) is not int or not 1 <= attempt <= MOST_ATTEMPTS:
        raise ValueError("attempt is no whole number that it can be")
    for name, value in (("run", run), ("restart", restart), ("hung", hung)):
        if type(value) is not bool:
            raise ValueError(f"{name} is neither true nor false")
    if not isinstance(environment, dict):
        raise ValueError("environment is no object")  # noqa: TRY004 - likewise
    for name, value in environment.items():
        if not NAME.fullmatch(name):
            raise ValueError(f"environment has {name[:64]!r}, which is no name of a variable")
        if not isinstance(value, str) or "\0" in value or not _is_text(value):
            raise ValueError(f"the value of environment.{name[:64]} is no text")
    told = {**environment, "TRAINYARD_ATTEMPT": str(attempt)}
    return Order(attempt, run, told, *_stop(said.get("stop")), restart, hung)


def _stop(said: object) -> tuple[bool, int | None]:
    if said is None:
        return False, None
    step = said.get("step") if isinstance(said, dict) else said
    if not isinstance(said, dict) or not (step is None or (type(step) is int and 0 <= step <= MOST_STEPS)):
        raise ValueError("stop says no step that there can be")
    return True, step


def waits_at_first(environment: Mapping[str, str]) -> bool:
    """Whether the ranks are not to be started before the operator says so. Raises SettingError."""
    value = environment.get(RENDEZVOUS, "")
    if value not in {"", "wait"}:
        raise SettingError(f"{RENDEZVOUS} must be wait, or not be set, and is {value!r}")
    if value and not environment.get("TRAINYARD_COORDINATOR"):
        raise SettingError(f"{RENDEZVOUS} is wait, and nobody could say when: TRAINYARD_COORDINATOR is not set")
    return bool(value)


def _is_text(value: str) -> bool:
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True
