"""What the API server refuses, as one exception. Reads Status objects; must not decide what to do about them."""

from collections.abc import Mapping
from typing import Any

UNREACHABLE = 0
"""The `status` of an error that has no HTTP answer behind it: refused connection, time-out, broken stream."""

_RETRYABLE = frozenset({UNREACHABLE, 408, 429, 500, 502, 503, 504})


class ApiError(Exception):
    """One failed request to the API server, or a stream that ended badly.

    A write whose error has `status` 0 may have happened all the same: the answer, not the request, may be what was lost.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        retry_after: float | None = None,
        causes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(f"{reason} ({status}): {message}" if status else f"{reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes

    @classmethod
    def from_status(cls, status: int, body: Mapping[str, Any], *, retry_after: float | None = None) -> "ApiError":
        """Read a `v1.Status`. `status` is the HTTP code, used where the object has none of its own."""
        details = body.get("details") or {}
        causes = frozenset(str(cause.get("reason")) for cause in details.get("causes") or () if cause.get("reason"))
        told = details.get("retryAfterSeconds")
        return cls(
            int(body.get("code") or status),
            str(body.get("reason") or "Unknown"),
            str(body.get("message") or f"the API server answered {status} without saying why"),
            retry_after=retry_after if retry_after is not None or told is None else float(told),
            causes=causes,
        )

    @property
    def not_found(self) -> bool:
        """No such object (or no such kind: the CRD is not installed)."""
        return self.status == 404

    @property
    def already_exists(self) -> bool:
        """A create met an object of that name."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Somebody wrote in between: read again, then decide again. A create meets it where a quota was updated meanwhile."""
        return self.status == 409 and not self.already_exists

    @property
    def gone(self) -> bool:
        """The resourceVersion or continue token has been compacted away: list again."""
        return self.status == 410 or self.reason in {"Expired", "Gone"}

    @property
    def lacks_right(self) -> bool:
        """The account may not do this at all, whatever the object is like. All of Kubernetes' authorizers say it in these words.

        The second sentence is an admission plugin's, about `update` on the finalizers of an owner.
        """
        return self.status == 403 and (
            (" cannot " in self.message and ' resource "' in self.message)
            or "cannot set blockOwnerDeletion" in self.message
        )

    @property
    def quota_exceeded(self) -> bool:
        """A ResourceQuota is used up. The API gives this no reason of its own, only a sentence."""
        return self.status == 403 and "exceeded quota" in self.message

    @property
    def namespace_terminating(self) -> bool:
        """The namespace is being deleted: nothing can be created in it any more."""
        return "NamespaceTerminating" in self.causes or (
            self.status == 403 and "because it is being terminated" in self.message
        )

    @property
    def retryable(self) -> bool:
        """The same request may succeed later without anything being changed."""
        return self.status in _RETRYABLE
