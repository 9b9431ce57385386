"""Read the termination message of a container: one JSON line by `trainyard-agent`, then free text for people. Pure.

Decisions depend on the line alone. Every other message is text without data. It may be of a container without the
agent, or of an agent with another version of the schema. Or the kubelet cut it within the line, or the program wrote
it. A program can forge a line, since the file is its container's own. That may mislead the decisions on its own job,
which it can end anyway, and on no other.

The agent's side is `trainyard_agent/termination_message.py`. Both are tested against `tests/golden/termination_messages.json`.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from signal import Signals
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from trainyard.api.base import MAX_JSON_INTEGER
from trainyard.api.recovery import PEER_LOST_CODE, SAVED_CODE
from trainyard.domain import wording
from trainyard.domain.wording import counted

START = '{"trainyard":'
LINE_BYTES = 1024
OOM_CAUSE_SECONDS = 30
"""A rank that exits within this time after the kernel killed a process for lack of memory usually does so because of
that. For example, a data loader has lost a worker."""
CONSEQUENCE_CODES = frozenset({SAVED_CODE, PEER_LOST_CODE})
"""The exit codes of ranks that exited because of an event elsewhere."""
HIGHEST_RANK = 999_999_999
HEADLINE_CHARACTERS = 512
MIB = 1 << 20


def _one_line(text: str) -> str:
    return " ".join(text.split())


Count = Annotated[int, Field(ge=0, le=MAX_JSON_INTEGER)]
Text = Annotated[str, Field(max_length=LINE_BYTES), AfterValidator(_one_line)]
"""One line. A program may have forged the message with several, which would break lines of logs and tables."""


class Kind(StrEnum):
    """What ended the worker."""

    FAILED = "failed"
    """A rank, or the command that starts the ranks, exited with an error."""
    HIDDEN = "hidden"
    """A rank failed, and the command that had started it exited with code 0. Also the exit code of the container is 0."""
    HUNG = "hung"
    """A rank made no progress for too long."""
    SAVED = "saved"
    """The ranks stopped after an agreed step, or saved because they were asked to."""
    NOT_STARTED = "notStarted"
    """The command could not be started."""
    RESTARTING = "restarting"
    """The container exits so that its node restarts it."""
    ABANDONED = "abandoned"
    """The operator did not start the attempt in time."""
    MISCONFIGURED = "misconfigured"
    """The agent's arguments or environment are wrong."""
    AGENT_UNABLE = "agentUnable"
    """The agent cannot run in this image."""


class Termination(BaseModel):
    """The data of a termination message. Fields of a newer agent are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, alias_generator=to_camel)

    trainyard: Annotated[int, Field(ge=1, le=1)]
    """The version of the schema. A `Literal` would take `true` for 1."""
    kind: Kind = Field(strict=False)
    rank: Annotated[int, Field(ge=0, le=HIGHEST_RANK)] | None = None
    """The global rank that is the cause."""
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    signal: Annotated[int, Field(ge=1, le=64)] | None = None
    """The signal that killed the process."""
    step: Count | None = None
    """The last step that the rank completed."""
    exception: Text = ""
    location: Text = ""
    """Frames, the innermost first: `data.py:57 in load < train.py:12 in main`."""
    cause: Text = ""
    """What the exception comes from: `program`, or a known cause; empty where it may come from outside. A newer agent may know more."""
    peer_lost: bool = False
    """Whether the rank exited because it lost another rank."""
    hardware_error: Text = ""
    """The words in the rank's output that point to broken hardware."""
    oom_kills: Count = 0
    """Processes that the kernel killed because memory ran out."""
    oom_age_seconds: Count | None = None
    """Seconds between the last of these kills and the exit."""
    memory_peak_bytes: Count | None = None
    memory_limit_bytes: Count | None = None
    phase: Text = ""
    """Of a hang: the phase in which the rank makes no progress."""
    stalled_seconds: Count | None = None
    usual_step_seconds: Annotated[float, Field(ge=0, le=MAX_JSON_INTEGER, allow_inf_nan=False)] | None = None
    blocked: Literal["", "stopped", "uninterruptible"] = ""
    """Of a hang: why the rank cannot say where it is."""
    outlier: bool = False
    """Of a hang: whether all other ranks of the worker are at one other place."""

    @property
    def out_of_memory(self) -> bool:
        """Whether the worker exited because memory ran out. The node does not report this for processes below the agent."""
        age = self.oom_age_seconds
        return self.oom_kills > 0 and (age is None or age <= OOM_CAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Exit:
    """The exit of a container."""

    time: datetime
    code: int
    reason: str
    message: str
    init_container: str | None = None
    """The name of the init container, where one exited."""
    step: int | None = None
    """The last step of the rank that caused the exit, where its program reports progress."""
    rank: int | None = None
    """That rank, where the agent names it."""
    kind: Kind | None = None
    """What the agent reports as the cause; None where no agent does."""
    headline: str = ""
    """That in one sentence for people: the first line of `message`."""
    location: str = ""
    """Where an exception was raised, the innermost frame first."""
    exception: str = ""
    """The type of that exception."""
    cause: str = ""
    """What that exception comes from, as the agent knows it; empty where it may come from outside of the program and its image."""
    peer_lost: bool = False
    """Whether the rank exited because it lost another rank."""
    hardware_error: str = ""
    """The words of its output that point to broken hardware."""

    @property
    def is_consequence(self) -> bool:
        """Whether it is a consequence of a lost peer, or of a request to stop."""
        return self.code in CONSEQUENCE_CODES or self.peer_lost

    @property
    def summary(self) -> str:
        """What happened as one line for people: the agent's data in a sentence, else the most telling line of the log."""
        return self.headline or wording.headline(self.message)


@dataclass(frozen=True, slots=True)
class Message:
    """A termination message, taken apart."""

    data: Termination | None
    """None where the message is text alone."""
    text: str


def read(message: str) -> Message:
    """Return the data and the text of a termination message. Never raises: what is no valid line is text."""
    message = message.strip()
    line, _, text = message.partition("\n")
    if not line.startswith(START) or len(line.encode(errors="replace")) > LINE_BYTES:
        return Message(None, message)
    try:
        data = Termination.model_validate_json(line)
    except ValidationError:
        return Message(None, message)
    return Message(data, text.strip())


def headline(data: Termination, text: str) -> str:
    """Return what happened as one sentence for people."""
    match data.kind:
        case Kind.FAILED | Kind.HIDDEN:
            return _failed(data, text)
        case Kind.HUNG:
            return _hung(data)
        case _:
            subject = _subject(data)
            return text.partition("\n")[0][:HEADLINE_CHARACTERS] or f"{subject} exited with code {data.exit_code or 0}"


def _subject(data: Termination) -> str:
    return "the command" if data.rank is None else f"rank {data.rank}"


def _failed(data: Termination, text: str) -> str:
    how = f"was killed by {signal_name(data.signal)}" if data.signal else f"exited with code {data.exit_code or 0}"
    line = f"{_subject(data)} {how}"
    if data.out_of_memory:
        line += f": out of memory: the kernel killed {_oom(data)}"
    elif data.signal == Signals.SIGBUS:
        line += ": mapped memory is not available; usually /dev/shm is full, or a file was truncated while it was read"
    elif data.exception:
        line += f": {data.exception}"
    elif not data.signal and (last := text.rpartition("\n")[2].strip()):
        line += f": {last}"
    line = line[:HEADLINE_CHARACTERS]
    if data.oom_kills and not data.out_of_memory:
        line += f" ({data.oom_age_seconds} seconds before, out of memory, the kernel killed {_oom(data)})"
    return line


def _oom(data: Termination) -> str:
    peak = "" if data.memory_peak_bytes is None else f", peak use {data.memory_peak_bytes // MIB} MiB"
    limit = "" if data.memory_limit_bytes is None else f", limit {data.memory_limit_bytes // MIB} MiB"
    return f"{data.oom_kills} of its processes{peak}{limit}"


def _hung(data: Termination) -> str:
    blocked = {"": "", "stopped": ", stopped by a signal", "uninterruptible": ", blocked in the kernel"}[data.blocked]
    where = f" at {data.location}" if data.location else blocked
    after = "" if data.step is None else f" after step {data.step}"
    during = "" if data.phase in {"", "train"} else f", in phase {data.phase}"
    known = data.usual_step_seconds is not None and not during
    usual = f" (usual step time {data.usual_step_seconds:.1f} s)" if known else ""
    others = "; all other ranks of the worker are elsewhere" if data.outlier else ""
    stalled = counted(data.stalled_seconds or 0, "second")
    return f"{_subject(data)} is hung{where}: no progress for {stalled}{after}{during}{usual}{others}"


def signal_name(number: int) -> str:
    """Return the name of a signal, or `signal N` where it has none."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
