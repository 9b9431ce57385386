"""What an agent tells. Nothing of it is believed unseen.

A report: `{"attempt": 2, "ranks": {"4": {"step": 120, "phase": "train", "loss": 0.31}}}`. A call, with which it waits
for a word: `{"attempt": 2, "state": "failed", "failure": {"code": 1, "message": "rank 4 …", "age": 0.1}}`.
"""

from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainyard.api.base import MOST, MOST_ATTEMPTS
from trainyard.api.spec import MOST_PROCESSES
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.domain.state.snapshot import Doing

LONGEST_REPORT = 512 * 1024
"""Bytes: of 1,024 ranks, the most that an agent starts, half of it; of 250 that hang, all."""
LONGEST_MESSAGE = 16 * 1024
FRAMES, LONGEST_FRAME = 8, 256
LARGEST = 1e100
"""Of a loss: no mean of such numbers is too large to be written."""
Amount = Annotated[float, Field(ge=0, le=LARGEST, allow_inf_nan=False)]


class _Part(BaseModel):
    # Fields of a newer agent are passed over; words where a number belongs are not.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class MeasuredReport(_Part):
    """What else the program of a rank measures."""

    samples_per_second: Amount | None = None
    tokens_per_second: Amount | None = None
    mfu: Amount | None = None
    grad_norm: Amount | None = None
    communication_share: Amount | None = None
    data_share: Amount | None = None
    checkpoint_share: Amount | None = None
    memory_bytes: Amount | None = None
    warm_bytes: Amount | None = None
    checkpoint_step: Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)] | None = None
    checkpoint_seconds: Amount | None = None


class RankReport(_Part):
    """How far a rank is."""

    step: int | None = Field(default=None, ge=0, le=MOST)
    phase: Literal["start", "compile", "train", "evaluate", "checkpoint"] = "train"
    total: int | None = Field(default=None, ge=0, le=MOST)
    loss: float | None = Field(default=None, ge=-LARGEST, le=LARGEST, allow_inf_nan=False)
    seconds: Amount | None = None
    """That a step takes as a rule."""
    own: Amount | None = None
    """That the rank itself works in a step, as a rule, where its program tells."""
    first: int | None = Field(default=None, ge=0, le=MOST)
    """The first step of this attempt."""
    measured: MeasuredReport | None = None
    stack: list[Annotated[str, Field(max_length=LONGEST_FRAME)]] | None = Field(default=None, max_length=FRAMES)
    """Where it stands while it hangs, the innermost frame first: `train.py:57 in load`."""


class Report(_Part):
    """How far the ranks of a worker are."""

    attempt: int = Field(ge=1, le=MOST_ATTEMPTS)
    ranks: dict[Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,7})$")], RankReport] = Field(max_length=MOST_PROCESSES)


class Failure(_Part):
    """How a rank ended that failed."""

    code: int = Field(ge=1, le=255)
    message: str = Field(default="", max_length=LONGEST_MESSAGE)
    """What would stand in the container's termination message, were it over."""
    age: Amount = 0.0
    """Seconds since then: clocks differ."""


class Leave(_Part):
    """How far the worker is on the way to an end together with all others."""

    leaving: bool = False
    """Whether it was asked to end."""
    asked: bool = False
    """Whether its ranks wait to hear the step."""
    passed: int | None = Field(default=None, ge=-1, lt=MOST)
    """The last step that one of its ranks has passed, -1 for none; None where they cannot wait."""
    at: int | None = Field(default=None, ge=0, le=MOST)
    """The step after which they end, as it has heard."""


class Call(_Part):
    """What the agent of a worker does, until it hears a word."""

    attempt: int = Field(ge=1, le=MOST_ATTEMPTS)
    # In JSON it is a word.
    state: Doing = Field(strict=False)
    failure: Failure | None = None
    leave: Leave | None = None
    """Where its ranks can come to an end together with all others."""
    prepared: bool = True
    """Whether all that the start of its ranks can be spared is done."""

    @model_validator(mode="after")
    def _failed_of_something(self) -> Self:
        if (self.state is Doing.FAILED) is (self.failure is None):
            raise ValueError("`failure` goes with the state `failed`, and with no other")
        return self


Part = TypeVar("Part", bound=_Part)


def read(kind: type[Part], body: bytes) -> Part:
    """A report or a call. Raises RefusedError with the first field that is wrong."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part)[:64] for part in first["loc"]) or "the body"
        raise RefusedError(RejectionReason.MALFORMED, f"{where}: {first['msg']}") from error
