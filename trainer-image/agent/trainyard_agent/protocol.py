"""The agent's side of the protocol with the operator: `POST /v1/sync` and `POST /v1/report`. Pure.

The operator's side is `trainyard/api/agent_protocol.py`. Both are tested against `tests/golden/agent_protocol.json`. Named tuples,
since `dataclasses` imports `inspect`, which would cost each worker's start 10 ms.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Optional

from trainyard_agent.hang import Usual
from trainyard_agent.nccl_network import Network
from trainyard_agent.rank_records import FormedGroups
from trainyard_agent.ranks import MAX_ATTEMPTS, MAX_PROCESSES
from trainyard_agent.report import RankState
from trainyard_agent.termination_message import MESSAGE_BYTES

REPORT_PATH, SYNC_PATH = "/v1/report", "/v1/sync"
MAX_STEP = 2**53
MAX_AMOUNT = 1e100
"""The largest loss or measurement that the operator accepts."""
FRAMES, FRAME_CHARACTERS = 4, 200
"""Of a stack, the innermost frames, and the characters of each."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_RETRY_AFTER_SECONDS = 30.0
"""The longest delay that the operator can ask for where it refuses a request."""
MIN_REPORT_SECONDS, MAX_REPORT_SECONDS, DEFAULT_REPORT_SECONDS = 1.0, 600.0, 60.0


class AgentState(Enum):
    """What the agent does, as it reports to the operator."""

    RUNNING = "running"
    """The ranks of the attempt run."""
    FAILED = "failed"
    """A rank of the attempt failed."""
    WAITING = "waiting"
    """No rank runs; the attempt may start."""
    RESTARTING = "restarting"
    """No rank runs, and the container is about to exit, to be restarted in the same pod."""
    ENDED = "ended"
    """All is done, and the container is about to exit."""


class StopProgress(NamedTuple):
    """How far this worker is in a coordinated stop."""

    leaving: bool = False
    """Whether this worker was asked to exit."""
    asked: bool = False
    """Whether the ranks wait for the step before they go on."""
    passed: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The last step that one of them has passed, -1 for none; None where they cannot be made to wait."""
    at: Optional[int] = None  # noqa: UP045 - Python 3.9
    """The step after which they exit."""


class Order(NamedTuple):
    """The operator's answer to `/v1/sync`."""

    attempt: int
    run: bool
    environment: Mapping[str, str]
    """What the ranks of that attempt have beside what is inherited."""
    stops: bool = False
    """Whether all ranks of the attempt stop together."""
    stop_at: Optional[int] = None  # noqa: UP045 - Python 3.9
    """After this step, once it is known."""
    restart: bool = False
    """Whether the container has to be restarted before the attempt starts."""
    hung: bool = False
    """Whether the attempt before ended because a rank hung."""
    stacks: str = ""
    """The request for the stacks of the ranks; empty where there is none."""
    secret: str = ""
    """That of the attempt, where its workers start processes in each other."""

    def __repr__(self) -> str:  # type: ignore[explicit-override]  # no typing_extensions here
        """Return what may be logged."""
        return f"Order(attempt={self.attempt}, run={self.run})"


def sync_request(
    attempt: int,
    state: AgentState,
    failure: tuple[int, str, float] | None = None,
    stop: StopProgress | None = None,
    *,
    prepared: bool = True,
    idle: bool = False,
    stacks: str | None = None,
) -> dict[str, object]:
    """Return the body of `/v1/sync`. `failure`: the exit code, the termination message, and its age in seconds.

    `idle`: whether no rank does anything. `stacks`: the last request for stacks that was met.
    """
    body: dict[str, object] = {"attempt": attempt, "state": state.value}
    if failure is not None:
        code, message, age = failure
        body["failure"] = {"code": code, "message": message[:MESSAGE_BYTES], "age": round(max(0.0, age), 3)}
    if stop is not None:
        body["leave"] = stop._asdict()
    if not prepared:
        body["prepared"] = False
    if idle:
        body["idle"] = True
    if stacks is not None:
        body["stacks"] = stacks
    return body


def report_request(
    attempt: int,
    ranks: Mapping[int, Mapping[str, Any]],
    formed: FormedGroups | None = None,
    network: Network | None = None,
    torch_processes: int | None = None,
    preflight_seconds: float | None = None,
) -> dict[str, object]:
    """Return the body of `/v1/report`. `ranks`: what `rank_report` returns, by rank. `formed`: the groups, where any is known.

    `network`: the one that NCCL took, where this worker has rank 0 and it is known. `torch_processes`: how many programs have had torch
    loaded at the same time, where the command starts them and it is known. `preflight_seconds`: how long nodes were compared before.
    """
    body: dict[str, object] = {
        "attempt": attempt,
        "ranks": {str(rank): fields for rank, fields in ranks.items()},
    }
    if formed is not None and formed.size >= 1:
        body["groups"] = {"size": formed.size, "leaders": min(formed.leaders, MAX_PROCESSES)}
    if network is not None:
        body["network"] = {"transport": network.transport.value, "name": network.name}
    if torch_processes is not None:
        body["torch_processes"] = min(torch_processes, MAX_PROCESSES)
    if preflight_seconds is not None:
        body["preflight_seconds"] = round(preflight_seconds, 1)
    return body


def rank_report(
    state: RankState,
    usual: Usual,
    stack: Sequence[str] | None = None,
    blocked: str | None = None,
    warm_bytes: int = 0,
) -> dict[str, Any]:
    """Return what is reported of a rank: no field of which nothing is known, and nothing that the operator would refuse."""
    # The program has timed each step where it uses the library; the agent only looks now and then.
    seconds = usual.step if state.seconds is None else state.seconds
    known = {
        "step": state.step,
        "phase": state.phase,
        "total": state.total,
        "loss": state.loss,
        "seconds": seconds and float(f"{seconds:.4g}"),
        "own": usual.compute and float(f"{usual.compute:.4g}"),
        "first": state.first,
    }
    fields: dict[str, Any] = {
        name: value for name, value in known.items() if isinstance(value, str) or _is_acceptable(name, value)
    }
    measured = {
        # The number of a step is that one and no other.
        name: int(value) if name == "checkpoint_step" else float(f"{value:.4g}")
        for name, value in state.measured.items()
        if value <= (MAX_STEP if name == "checkpoint_step" else MAX_AMOUNT)
    }
    if warm_bytes:
        measured["warm_bytes"] = float(warm_bytes)
    if measured:
        fields["measured"] = measured
    if stack:
        fields["stack"] = [frame[:FRAME_CHARACTERS] for frame in stack[:FRAMES]]
    if blocked:
        fields["blocked"] = blocked
    return fields


def parse_order(answer: object) -> Order:
    """Return the order in an answer to `/v1/sync`. Raises ValueError."""
    if not isinstance(answer, dict):
        raise ValueError("the answer is not an object")  # noqa: TRY004 - of what came, not of what it was called with
    attempt, run, environment = answer.get("attempt"), answer.get("run", False), answer.get("environment") or {}
    restart, hung = answer.get("restart", False), answer.get("hung", False)
    if type(attempt) is not int or not 1 <= attempt <= MAX_ATTEMPTS:
        raise ValueError(f"attempt is not an integer from 1 to {MAX_ATTEMPTS}")
    for name, value in (("run", run), ("restart", restart), ("hung", hung)):
        if type(value) is not bool:
            raise ValueError(f"{name} is neither true nor false")
    if not isinstance(environment, dict):
        raise ValueError("environment is not an object")  # noqa: TRY004 - an error of the message, not of the program
    for name, value in environment.items():
        if not NAME.fullmatch(name):
            raise ValueError(f"environment has {name[:64]!r}, which is not a variable name")
        if not isinstance(value, str) or "\0" in value or not _is_encodable(value):
            raise ValueError(f"the value of environment.{name[:64]} is not a string")
    stacks, secret = (_parse_text(answer, name) for name in ("stacks", "secret"))
    variables = {**environment, "TRAINYARD_ATTEMPT": str(attempt)}
    return Order(attempt, run, variables, *_parse_stop(answer.get("stop")), restart, hung, stacks, secret)


def parse_report_pause(answer: Mapping[str, object]) -> float:
    """Return the seconds until the next report, from an answer to `/v1/report`."""
    pause = answer.get("next")
    if not isinstance(pause, (int, float)) or math.isnan(pause):
        return DEFAULT_REPORT_SECONDS
    return float(min(MAX_REPORT_SECONDS, max(MIN_REPORT_SECONDS, pause)))


def parse_refusal(status: int, answer: object) -> tuple[str | None, str]:
    """Return the reason of a refusal, for programs, and its text, for people."""
    fields = answer if isinstance(answer, dict) else {}
    reason = fields.get("reason")
    return reason if isinstance(reason, str) else None, f"{fields.get('reason', status)}: {fields.get('message', '')}"


def parse_retry_delay(answer: object) -> float:
    """Return the seconds that a refusal asks for before the next try; 0 where it asks for none."""
    after = answer.get("after") if isinstance(answer, dict) else None
    if isinstance(after, bool) or not isinstance(after, (int, float)) or math.isnan(after):
        return 0.0
    return float(min(MAX_RETRY_AFTER_SECONDS, max(0.0, after)))


def _parse_text(answer: Mapping[str, object], name: str) -> str:
    text = answer.get(name, "")
    if not isinstance(text, str):
        raise ValueError(f"{name} is not a string")  # noqa: TRY004 - an error of the message, not of the program
    return text


def _parse_stop(stop: object) -> tuple[bool, int | None]:
    if stop is None:
        return False, None
    step = stop.get("step") if isinstance(stop, dict) else stop
    if not isinstance(stop, dict) or not (step is None or (type(step) is int and 0 <= step <= MAX_STEP)):
        raise ValueError(f"stop.step is not an integer from 0 to {MAX_STEP}")
    return True, step


def _is_acceptable(name: str, value: float | None) -> bool:
    if value is None:
        return False
    if name in {"step", "total", "first"}:
        return value <= MAX_STEP
    return math.isfinite(value) and abs(value) <= MAX_AMOUNT


def _is_encodable(value: str) -> bool:
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True
