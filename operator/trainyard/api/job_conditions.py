"""The conditions of a job, and which of them `status.reason` and `status.message` show."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Literal

from pydantic import Field

from trainyard.api.base import MAX_JSON_INTEGER, Model, Time
from trainyard.api.internal_status import MAX_REASON_LENGTH


class ConditionType(StrEnum):
    """The condition types of a job. `kubectl wait --for=condition=…` accepts each."""

    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    RESIZING = "Resizing"
    SCALING_LIMITED = "ScalingLimited"
    QUEUED = "Queued"
    SUSPENDED = "Suspended"
    STRAGGLING = "Straggling"
    HANG_SUSPECTED = "HangSuspected"
    HANG_DETECTION_LIMITED = "HangDetectionLimited"
    FAILURE_HIDDEN = "FailureHidden"
    GROUP_SPLIT = "GroupSplit"
    RDMA_UNUSED = "RdmaUnused"
    AGENT_INJECTED = "AgentInjected"
    ACCELERATORS_UNCERTAIN = "AcceleratorsUncertain"
    STALLED = "Stalled"
    COMPLETE = "Complete"
    FAILED = "Failed"


SUMMARY_ORDER = (
    (ConditionType.FAILED, "True"),
    (ConditionType.COMPLETE, "True"),
    (ConditionType.SUSPENDED, "True"),
    (ConditionType.STALLED, "True"),
    (ConditionType.QUEUED, "True"),
    (ConditionType.RUNNING, "False"),
    (ConditionType.SCALING_LIMITED, "True"),
    (ConditionType.RESIZING, "True"),
    (ConditionType.FAILURE_HIDDEN, "True"),
    (ConditionType.GROUP_SPLIT, "True"),
    (ConditionType.RDMA_UNUSED, "True"),
    (ConditionType.HANG_SUSPECTED, "True"),
    (ConditionType.STRAGGLING, "True"),
    (ConditionType.ACCELERATORS_UNCERTAIN, "True"),
)
"""Which condition `status.reason` and `status.message` show: the first one that has this status."""
SUMMARY_LENGTH = 160
"""Characters of `status.message`: the last column of `kubectl get -o wide`. The condition holds the whole message."""
PLACE = re.compile(r" \(pod \S{1,253}(?: on [^)]{0,253})?\)")
"""Pod and node of a worker, whose names may be longer than the summary. The condition and `status.lastFailure` name them."""
MAX_SUMMARY_LENGTH = 1024
"""The limit of the field. An earlier release has stored that much."""


class Condition(Model):
    """A standard condition (KEP-1623)."""

    type: str = Field(max_length=316)
    """The type of the condition."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    reason: str = Field(min_length=1, max_length=MAX_REASON_LENGTH)
    """The reason in one word, for programs."""
    message: str = Field(default="", max_length=32768)
    """The reason in a sentence, for people."""
    last_transition_time: Time
    """When `status` last changed."""
    observed_generation: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """The generation of the spec for which the condition was set."""


def summary(conditions: Iterable[Condition]) -> tuple[str | None, str | None]:
    """Return reason and message of the condition that people ask for first; None twice if all workers run as requested."""
    by_type = {condition.type: condition for condition in conditions}
    for kind, status in SUMMARY_ORDER:
        if (condition := by_type.get(kind)) is None or condition.status != status:
            continue
        restart = by_type.get(ConditionType.RESTARTING)
        # Running only says that the group restarts; Restarting says why.
        same = kind is ConditionType.RUNNING and restart and restart.status == "True"
        shown = restart if same and restart and restart.reason == condition.reason else condition
        return condition.reason, shortened(PLACE.sub("", shown.message, count=1), SUMMARY_LENGTH)
    return None, None


def shortened(message: str, limit: int) -> str:
    """Return the message in one line of at most `limit` characters, cut after a word. The condition holds all of it."""
    line = " ".join(message.split())
    if len(line) <= limit:
        return line
    cut = line[: limit - 1]
    return (cut.rpartition(" ")[0] or cut).rstrip(",;:.") + "…"
