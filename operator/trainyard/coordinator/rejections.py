"""Reasons for rejecting a request of an agent: an HTTP status, a reason for programs and metrics, a message for
people.
"""

from dataclasses import dataclass
from enum import StrEnum


class RejectionReason(StrEnum):
    """The reasons, also the label `result` of `trainyard_agent_reports_total` and
    `trainyard_agent_sync_requests_total`.
    """

    ACCEPTED = "Accepted"
    NOT_LEADING = "NotLeading"
    KEYS_UNKNOWN = "KeysUnknown"
    NO_TOKEN = "NoToken"  # noqa: S105 - a reason, no secret
    BAD_TOKEN = "BadToken"  # noqa: S105 - a reason, no secret
    EXPIRED_TOKEN = "ExpiredToken"  # noqa: S105 - a reason, no secret
    UNKNOWN_POD = "UnknownPod"
    FOREIGN_RANK = "ForeignRank"
    STALE_ATTEMPT = "StaleAttempt"
    REPLACED = "Replaced"
    OVER = "Over"
    MALFORMED = "Malformed"
    TOO_LARGE = "TooLarge"
    TOO_SLOW = "TooSlow"
    TOO_OFTEN = "TooOften"


STATUS = {
    RejectionReason.ACCEPTED: 200,
    RejectionReason.NOT_LEADING: 503,
    RejectionReason.KEYS_UNKNOWN: 503,
    RejectionReason.NO_TOKEN: 401,
    RejectionReason.BAD_TOKEN: 401,
    RejectionReason.EXPIRED_TOKEN: 401,
    RejectionReason.UNKNOWN_POD: 403,
    RejectionReason.FOREIGN_RANK: 403,
    RejectionReason.STALE_ATTEMPT: 409,
    RejectionReason.REPLACED: 410,
    RejectionReason.OVER: 410,
    RejectionReason.MALFORMED: 400,
    RejectionReason.TOO_LARGE: 413,
    RejectionReason.TOO_SLOW: 408,
    RejectionReason.TOO_OFTEN: 429,
}
"""The HTTP status of each reason."""


# Not frozen: context managers set `__traceback__` on exceptions that pass through them.
@dataclass(eq=False)
class RefusedError(Exception):
    """A request that is rejected and changes nothing."""

    reason: RejectionReason
    message: str
    after: float | None = None
    """Seconds after which the request may be accepted; None where that does not depend on time."""
