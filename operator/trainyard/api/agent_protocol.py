"""The protocol between `trainyard-agent` and the operator: `POST /v1/sync` and `POST /v1/report`, the operator's side.

The agent's side is `trainyard_agent/protocol.py`; both are tested against `tests/golden/agent_protocol.json`. Fields of a newer peer are
ignored; a value of another type than the schema's is refused.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from trainyard.api.base import MAX_ATTEMPT, MAX_JSON_INTEGER
from trainyard.api.constants import MAX_STACK_REQUEST
from trainyard.api.spec import MAX_PROCESSES_PER_REPLICA

REPORT_PATH, SYNC_PATH = "/v1/report", "/v1/sync"
MAX_BODY_BYTES = 512 * 1024
"""Of 1,024 ranks, the most that an agent starts, half of it; of 250 that hang, all."""
MAX_MESSAGE_CHARACTERS = 16 * 1024
MAX_FRAMES, MAX_FRAME_CHARACTERS = 8, 256
MAX_AMOUNT = 1e100
"""Of a loss: no mean of such numbers is too large to be written."""
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]
LENIENT = ConfigDict(frozen=True, extra="ignore", strict=True)


class Part(BaseModel):
    """A part of the protocol."""

    model_config = LENIENT


class AgentState(StrEnum):
    """What the agent of a worker does."""

    RUNNING = "running"
    """The ranks of its attempt run."""
    FAILED = "failed"
    """A rank of its attempt has failed; it waits for another attempt."""
    WAITING = "waiting"
    """No rank runs; it is ready to start those of its attempt."""
    RESTARTING = "restarting"
    """No rank runs; its container is about to exit, to be restarted in the same pod."""
    ENDED = "ended"
    """All is done here, and the container is about to exit."""


# A dataclass, so that the domain can make one by position.
@dataclass(frozen=True, slots=True, config=ConfigDict(extra="ignore", strict=True))
class StopProgress:
    """How far a worker is in a coordinated stop."""

    leaving: bool = False
    """Whether it was asked to exit."""
    asked: bool = False
    """Whether its ranks wait for the step after which they exit."""
    passed: Annotated[int, Field(ge=-1, lt=MAX_JSON_INTEGER)] | None = None
    """The last step that one of its ranks has passed, -1 for none; None where they cannot wait."""
    at: Annotated[int, Field(ge=0, le=MAX_JSON_INTEGER)] | None = None
    """The step, as the worker knows it."""


class MeasuredReport(Part):
    """What else the program of a rank measures."""

    samples_per_second: Amount | None = None
    tokens_per_second: Amount | None = None
    mfu: Amount | None = None
    grad_norm: Amount | None = None
    communication_share: Amount | None = None
    data_share: Amount | None = None
    checkpoint_share: Amount | None = None
    memory_bytes: Amount | None = None
    gemm_seconds: Amount | None = None
    warm_bytes: Amount | None = None
    checkpoint_step: Annotated[float, Field(ge=0, le=MAX_JSON_INTEGER, allow_inf_nan=False)] | None = None
    checkpoint_seconds: Amount | None = None


class RankReport(Part):
    """How far a rank is."""

    step: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    phase: Literal["start", "compile", "train", "evaluate", "checkpoint"] = "train"
    total: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    loss: float | None = Field(default=None, ge=-MAX_AMOUNT, le=MAX_AMOUNT, allow_inf_nan=False)
    seconds: Amount | None = None
    """That a step usually takes."""
    own: Amount | None = None
    """That the rank itself usually works in a step, where its program reports that."""
    first: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """The first step of this attempt."""
    measured: MeasuredReport | None = None
    stack: list[Annotated[str, Field(max_length=MAX_FRAME_CHARACTERS)]] | None = Field(
        default=None, max_length=MAX_FRAMES
    )
    """Where it is while it hangs, the innermost frame first: `train.py:57 in load`."""
    blocked: Literal["stopped", "uninterruptible"] | None = None
    """Why it cannot say where it is."""


class GroupsReport(Part):
    """The process groups that the programs of a worker have formed."""

    size: int = Field(ge=1, le=MAX_JSON_INTEGER)
    """The ranks of the largest."""
    leaders: int = Field(ge=0, le=MAX_PROCESSES_PER_REPLICA)
    """The processes of the worker that are rank 0 of a group of that size."""


class Transport(StrEnum):
    """The kind of a network of NCCL."""

    INFINIBAND = "InfiniBand"
    ROCE = "RoCE"
    SOCKETS = "Sockets"
    PLUGIN = "Plugin"


class NetworkReport(Part):
    """The network that NCCL took between workers, in the worker of rank 0."""

    # In JSON it is a string.
    transport: Transport = Field(strict=False)
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_ .+-]{0,63}$")
    """NCCL's own name of it."""


class Report(Part):
    """The body of `/v1/report`: how far the ranks of a worker are, and which groups they form."""

    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    ranks: dict[Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,7})$")], RankReport] = Field(
        max_length=MAX_PROCESSES_PER_REPLICA
    )
    groups: GroupsReport | None = None
    """None where no program has formed a group, or it is not known."""
    network: NetworkReport | None = None
    """None in other workers than that of rank 0, or where it is not known."""
    torch_processes: int | None = Field(default=None, ge=1, le=MAX_PROCESSES_PER_REPLICA)
    """How many programs of the worker have had torch loaded at the same time. None where it has one process, or it is not known."""
    preflight_seconds: Amount | None = None
    """How long the comparison of nodes took before the ranks started. None where there was none."""


class ReportAnswer(Part):
    """The answer to `/v1/report`."""

    next: float
    """Seconds until the next report."""


class Failure(Part):
    """How a rank exited that failed."""

    code: int = Field(ge=1, le=255)
    message: str = Field(default="", max_length=MAX_MESSAGE_CHARACTERS)
    """What would be the container's termination message, were it over."""
    age: Amount = 0.0
    """Seconds since then: clocks differ."""


class SyncRequest(Part):
    """The body of `/v1/sync`: what the agent of a worker does, until it has to do something else."""

    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    # In JSON it is a string.
    state: AgentState = Field(strict=False)
    failure: Failure | None = None
    leave: StopProgress | None = None
    """Where its ranks can take part in a coordinated stop."""
    prepared: bool = True
    """Whether the start of its ranks is prepared as far as it can be."""
    idle: bool = False
    """Whether none of its ranks has done anything for the limit, where they report no progress."""
    stacks: str | None = Field(default=None, max_length=MAX_STACK_REQUEST)
    """The last request for stacks that it has met, empty for none; None where it knows no such requests."""

    @model_validator(mode="after")
    def _has_failure_where_failed(self) -> Self:
        if (self.state is AgentState.FAILED) is (self.failure is None):
            raise ValueError("`failure` goes with the state `failed`, and with no other")
        return self


class StopOrder(Part):
    """The coordinated stop of an attempt."""

    step: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """The step after which all ranks exit; None while it is not known."""


class SyncAnswer(Part):
    """The answer to `/v1/sync`: the attempt that the worker belongs to, and what to do for it."""

    attempt: int = Field(ge=1, le=MAX_ATTEMPT)
    run: bool
    """Whether to start the ranks."""
    environment: Mapping[str, str]
    """What they have beside what is inherited."""
    restart: bool = False
    """Whether the container has to be restarted before the attempt starts."""
    hung: bool = False
    """Whether the attempt before ended because a rank hung."""
    stop: StopOrder | None = None
    stacks: str = Field(default="", max_length=MAX_STACK_REQUEST)
    """The request for the stacks of its ranks; empty where there is none."""
    secret: str = Field(default="", repr=False)
    """That of the attempt, with which its agents start processes in each other; empty where the framework needs none."""

    def body(self) -> dict[str, Any]:
        """Return it as JSON, without the fields that say nothing."""
        optional = {"restart": self.restart, "hung": self.hung}
        body: dict[str, Any] = {"attempt": self.attempt, "run": self.run, "environment": dict(self.environment)}
        body |= {name: True for name, value in optional.items() if value}
        body |= {name: text for name, text in (("stacks", self.stacks), ("secret", self.secret)) if text}
        return body | ({"stop": {"step": self.stop.step}} if self.stop else {})


class Refusal(Part):
    """The answer to a request that is refused; the HTTP status says whether to try again."""

    reason: str
    """For programs and metrics."""
    message: str
    """For people."""
    after: float | None = None
    """Seconds after which to try again; None where the agent's own delay is as good."""

    def body(self) -> dict[str, Any]:
        """Return it as JSON, without the fields that say nothing."""
        return self.model_dump(exclude_none=True)
