"""The part of the status that tells how far the training is, and what its time went into."""

from pydantic import Field

from trainyard.api.base import MOST, MOST_ATTEMPTS, Model, Time

MOST_STRAGGLERS = 16
"""Ranks that are named. Who is slow with so many others has a reason of its own."""


class MeasuredProgress(Model):
    """What the training library measures, or a program that tells it (`progress(…, measured=…)`)."""

    samples_per_second: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of all ranks together."""
    tokens_per_second: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of all ranks together."""
    mfu: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Model FLOPs utilisation: the share of its device's peak that a rank uses. The mean over the ranks."""
    grad_norm: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The norm of the gradient. The mean of what the ranks have told last."""
    communication_share: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of the time, that in which a collective is under way. The mean over the ranks."""
    data_share: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of the time, that in which a rank waits for data. The mean over the ranks."""
    checkpoint_share: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of the time, that in which a checkpoint keeps a rank from training. The mean over the ranks."""
    memory_bytes: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of the device at its peak, or without one of the process. That of the rank with the most."""
    warm_bytes: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Memory of the processes from which ranks are started anew (`recovery.warmStart`), of all workers together."""


class Checkpointed(Model):
    """The newest checkpoint that is stored as a whole, as programs with the training library tell."""

    step: int = Field(ge=0, le=MOST)
    """The last step that is in it: a recovery goes on from there."""
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """How long it took to be stored. The training goes on meanwhile."""
    time: Time
    """When the operator heard of it."""


class Progress(Model):
    """How far the training is, as its program tells the agent (`trainyard_agent.progress`)."""

    step: int | None = Field(default=None, ge=0, le=MOST)
    """The last step that every rank which tells its steps has done."""
    total_steps: int | None = Field(default=None, ge=0, le=MOST)
    """The step at which it means to end."""
    percent: int | None = Field(default=None, ge=0, le=100)
    """`step` as a share of `totalSteps`, in percent, rounded down."""
    phase: str = Field(default="train", max_length=32)
    """What the rank that is furthest behind does: start, compile, train, evaluate or checkpoint."""
    loss: float | None = Field(default=None, allow_inf_nan=False)
    """The mean of the losses that the ranks have told last."""
    step_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds that a step takes as a rule: the median over the last steps, and over the ranks."""
    fastest_rank_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Likewise of the rank that is the fastest: the seconds in which it works itself, where all tell that (`progress(…, own_seconds=…)`)."""
    slowest_rank_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of the slowest: how far both are apart is what the group could save. Not there where one rank alone tells."""
    checkpoint: Checkpointed | None = None
    """The newest checkpoint, of whichever attempt."""
    measured: MeasuredProgress | None = None
    """What else is measured, where the program tells."""
    updated_at: Time
    """When the operator last heard of a change."""


class Straggler(Model):
    """A rank that takes half as long again for a step as the group's median, or more."""

    rank: int = Field(ge=0, le=MOST)
    """The rank."""
    pod: str = Field(max_length=253)
    """The pod in which it runs."""
    node: str | None = Field(default=None, max_length=253)
    """The node of that pod."""
    step_seconds: float = Field(ge=0, allow_inf_nan=False)
    """Seconds that its step takes as a rule: those in which it works itself, where the program tells
    (`progress(…, own_seconds=…)`)."""
    factor: float = Field(ge=0, allow_inf_nan=False)
    """How many times the median that is."""
    since: Time
    """Since when it has been so slow."""
    confirmed: bool = False
    """Whether that has been so for a minute: then the condition Straggling tells of it."""


class LostSeconds(Model):
    """Active seconds that were not goodput, by name."""

    startup: float = Field(default=0.0, ge=0, le=MOST, allow_inf_nan=False)
    """Until the first step of the job began, attempts included that ended before it."""
    recovery: float = Field(default=0.0, ge=0, le=MOST, allow_inf_nan=False)
    """From the last step that an attempt has told to the begin of the first one of the next: noticing what was wrong, the restart,
    reading the checkpoint. Steps of which an agent could tell no more, those of five seconds as a rule, count here."""
    repeated: float = Field(default=0.0, ge=0, le=MOST, allow_inf_nan=False)
    """Steps that had been done before, because they came after the checkpoint from which training went on."""
    other: float = Field(default=0.0, ge=0, le=MOST, allow_inf_nan=False)
    """The rest of the time in which an attempt trained: checkpoints, evaluation, steps slower than usual, waiting for data, and what comes after the last step."""


class Goodput(Model):
    """What share of the job's active time went into steps that counted, and where the rest went."""

    ratio: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """The productive seconds over all of them, from 0 to 1. It is as new as the last step in it: what has passed since counts when
    the next step is told, or the job ends or is suspended."""
    productive_seconds: float = Field(default=0.0, ge=0, le=MOST, allow_inf_nan=False)
    """Steps that were done for the first time, each at what a step took as a rule just then (`progress.stepSeconds`)."""
    lost_seconds: LostSeconds = LostSeconds()
    """The other seconds. Both together are all active seconds up to `accountedSeconds`, or since the operator first counted them."""
    accounted_seconds: float = Field(default=0.0, ge=0, le=MOST, allow_inf_nan=False)
    """How many seconds the job had been active, suspensions left out, when the last step in it was told."""
    furthest_step: int = Field(default=0, ge=0, le=MOST)
    """The furthest step of all attempts. Each step up to it has counted once: a program that counts anew repeats them."""
    attempt: int = Field(default=0, ge=0, le=MOST_ATTEMPTS)
    """The attempt that did the last step in it; 0 before there is one."""
    step: int = Field(default=0, ge=0, le=MOST)
    """That step."""
