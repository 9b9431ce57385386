"""The part of the status about the progress of the training, and how its time was spent."""

from pydantic import Field

from trainyard.api.base import MAX_ATTEMPT, MAX_JSON_INTEGER, Model, Time

MAX_STRAGGLERS = 16
"""The most ranks that are listed. With more of them, the ranks are not the cause."""


class MeasuredProgress(Model):
    """Measurements of the training library, or of a program that reports them (`progress(…, measured=…)`)."""

    samples_per_second: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Samples per second of all ranks together."""
    tokens_per_second: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Tokens per second of all ranks together."""
    mfu: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Model FLOPs utilisation: the share of its device's peak that a rank uses. The mean over the ranks."""
    grad_norm: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The norm of the gradient: the mean of the last reports of the ranks."""
    communication_share: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The share of time spent in collectives. The mean over the ranks."""
    data_share: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The share of time for which a rank waits for data. The mean over the ranks."""
    checkpoint_share: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The share of time for which a checkpoint blocks training. The mean over the ranks."""
    memory_bytes: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Peak memory of the device, or of the process if there is no device. The maximum over the ranks."""
    gemm_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds for 50 TFLOP of matrix products, which a GPU does now and then if ranks wait for others within each pass. The maximum over the
    ranks."""
    warm_bytes: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Memory of the processes from which ranks are restarted (`recovery.warmStart`), of all workers together."""


class Checkpointed(Model):
    """The newest complete checkpoint, as programs with the training library report it."""

    step: int = Field(ge=0, le=MAX_JSON_INTEGER)
    """The last step in the checkpoint. A recovery continues from there."""
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds that it took to store. The training continues meanwhile."""
    time: Time
    """When the operator received the report."""


class Progress(Model):
    """The progress of the training, as its program reports it to the agent (`trainyard_agent.progress`)."""

    step: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """The last step that all reporting ranks have finished."""
    total_steps: int | None = Field(default=None, ge=0, le=MAX_JSON_INTEGER)
    """The last step of the training."""
    percent: int | None = Field(default=None, ge=0, le=100)
    """`step` as a share of `totalSteps`, in percent, rounded down."""
    phase: str = Field(default="train", max_length=32)
    """The phase of the rank that is furthest behind: start, compile, train, evaluate or checkpoint."""
    loss: float | None = Field(default=None, allow_inf_nan=False)
    """The mean of the last losses that the ranks reported."""
    step_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The usual step time in seconds: the median over the last steps and over the ranks."""
    fastest_rank_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The step time of the fastest rank. Its compute time, if all ranks report it (`progress(…, compute_seconds=…)`)."""
    slowest_rank_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The step time of the slowest rank. The difference to the fastest one is what the group could save. Not set if only one rank reports."""
    checkpoint: Checkpointed | None = None
    """The newest checkpoint of any attempt."""
    measured: MeasuredProgress | None = None
    """Other measurements, if the program reports them."""
    updated_at: Time
    """When the operator last received a change."""


class Straggler(Model):
    """A rank whose step time, or whose GPU's time for the same work, is at least 1.5 times the median of the group."""

    rank: int = Field(ge=0, le=MAX_JSON_INTEGER)
    """The rank."""
    pod: str = Field(max_length=253)
    """The pod in which it runs."""
    node: str | None = Field(default=None, max_length=253)
    """The node of that pod."""
    step_seconds: float = Field(ge=0, allow_inf_nan=False)
    """The usual step time of the rank in seconds. Its compute time, if the program reports it (`progress(…, compute_seconds=…)`)."""
    gemm_seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Seconds of its GPU for 50 TFLOP of matrix products, if these show that the rank is slow."""
    factor: float = Field(ge=0, allow_inf_nan=False)
    """The step time divided by the median, or that of `gemmSeconds`."""
    since: Time
    """The time since which the rank has been slow."""
    confirmed: bool = False
    """Whether the rank has been slow for a minute. Then the condition Straggling reports it."""


class LostSeconds(Model):
    """Active seconds that were not productive, by cause."""

    startup: float = Field(default=0.0, ge=0, le=MAX_JSON_INTEGER, allow_inf_nan=False)
    """Until the first step of the job started, attempts without a step included."""
    recovery: float = Field(default=0.0, ge=0, le=MAX_JSON_INTEGER, allow_inf_nan=False)
    """From the last reported step of an attempt to the first step of the next: detection, restart, loading of the checkpoint. Steps that
    an agent could not report any more count here too, usually those of five seconds."""
    repeated: float = Field(default=0.0, ge=0, le=MAX_JSON_INTEGER, allow_inf_nan=False)
    """Steps that were repeated, because they came after the checkpoint from which training continued."""
    preflight: float = Field(default=0.0, ge=0, le=MAX_JSON_INTEGER, allow_inf_nan=False)
    """The comparison of nodes before training (`health.preflight`), in attempts that trained after it."""
    other: float = Field(default=0.0, ge=0, le=MAX_JSON_INTEGER, allow_inf_nan=False)
    """The remaining time of attempts that trained: checkpoints, evaluation, slow steps, waiting for data, and the time after the last step."""


class Goodput(Model):
    """The share of the active time that was productive, and the causes of the rest."""

    ratio: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    """Productive seconds divided by accounted seconds, from 0 to 1. Time since the last reported step is not accounted yet. It is accounted
    with the next step, or when the job finishes or is suspended."""
    productive_seconds: float = Field(default=0.0, ge=0, le=MAX_JSON_INTEGER, allow_inf_nan=False)
    """Seconds of steps that were done for the first time, each at the usual step time (`progress.stepSeconds`)."""
    lost_seconds: LostSeconds = LostSeconds()
    """Active seconds without productive steps, by cause. Together with `productiveSeconds` they are `accountedSeconds`, or the seconds since
    the operator first counted them."""
    accounted_seconds: float = Field(default=0.0, ge=0, le=MAX_JSON_INTEGER, allow_inf_nan=False)
    """Active seconds of the job, without suspensions, at the last reported step."""
    furthest_step: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """The furthest step of all attempts. Each step up to it has counted once. A program that counts from 0 again repeats them."""
    attempt: int = Field(default=0, ge=0, le=MAX_ATTEMPT)
    """The attempt of the last accounted step; 0 if there is none."""
    step: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """The last accounted step."""
