"""Why a request of an agent is refused: an HTTP status, one word for programs and metrics, a sentence for people."""

from dataclasses import dataclass
from enum import StrEnum


class Why(StrEnum):
    """The words, which are also the values of the label `result` of `trainyard_agent_reports_total` and `trainyard_agent_calls_total`."""

    ACCEPTED = "Accepted"
    NOT_LEADING = "NotLeading"
    KEYS_UNKNOWN = "KeysUnknown"
    NO_TOKEN = "NoToken"  # noqa: S105 - a word, no secret
    BAD_TOKEN = "BadToken"  # noqa: S105 - likewise
    EXPIRED_TOKEN = "ExpiredToken"  # noqa: S105 - likewise
    UNKNOWN_POD = "UnknownPod"
    FOREIGN_RANK = "ForeignRank"
    STALE_ATTEMPT = "StaleAttempt"
    REPLACED = "Replaced"
    OVER = "Over"
    MALFORMED = "Malformed"
    TOO_LARGE = "TooLarge"
    TOO_SLOW = "TooSlow"


STATUS = {
    Why.ACCEPTED: 200,
    Why.NOT_LEADING: 503,
    Why.KEYS_UNKNOWN: 503,
    Why.NO_TOKEN: 401,
    Why.BAD_TOKEN: 401,
    Why.EXPIRED_TOKEN: 401,
    Why.UNKNOWN_POD: 403,
    Why.FOREIGN_RANK: 403,
    Why.STALE_ATTEMPT: 409,
    Why.REPLACED: 410,
    Why.OVER: 410,
    Why.MALFORMED: 400,
    Why.TOO_LARGE: 413,
    Why.TOO_SLOW: 408,
}
"""The HTTP status of each."""


# Not frozen: context managers that it passes through write down where it was.
@dataclass(eq=False)
class RefusedError(Exception):
    """A request that is not served, and changes nothing."""

    why: Why
    message: str
