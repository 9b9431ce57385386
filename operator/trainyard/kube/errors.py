"""Errors of the API server as one exception. Reads `Status` objects; must not decide how to react."""

from collections.abc import Mapping
from typing import Any

UNREACHABLE = 0
"""The `status` of an error without an HTTP answer: refused connection, timeout, broken stream."""

_RETRYABLE = frozenset({UNREACHABLE, 408, 429, 500, 502, 503, 504})


class ApiError(Exception):
    """One failed request to the API server, or a watch that broke.

    A write whose error has `status` 0 may have been carried out: perhaps only the answer was lost.
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
        """Build the error from a `v1.Status`. `status` is the HTTP code, used where the object has none."""
        details = body.get("details") or {}
        causes = frozenset(str(cause.get("reason")) for cause in details.get("causes") or () if cause.get("reason"))
        retry_after_seconds = details.get("retryAfterSeconds")
        return cls(
            int(body.get("code") or status),
            str(body.get("reason") or "Unknown"),
            str(body.get("message") or f"the API server answered {status} without a message"),
            retry_after=retry_after
            if retry_after is not None or retry_after_seconds is None
            else float(retry_after_seconds),
            causes=causes,
        )

    @property
    def not_found(self) -> bool:
        """The object, or its kind, does not exist (the CRD is not installed)."""
        return self.status == 404

    @property
    def already_exists(self) -> bool:
        """A create failed because an object has that name."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """The object was changed in between: read it again, then decide again. A create fails so while a quota is being
        updated.
        """
        return self.status == 409 and not self.already_exists

    @property
    def gone(self) -> bool:
        """The resourceVersion or continue token was compacted away: list again."""
        return self.status == 410 or self.reason in {"Expired", "Gone"}

    @property
    def permission_denied(self) -> bool:
        """The account lacks the permission, whatever the object is. All authorizers of Kubernetes use this wording.

        The second message comes from the admission plugin that checks `update` on the finalizers of an owner.
        """
        return self.status == 403 and (
            (" cannot " in self.message and ' resource "' in self.message)
            or "cannot set blockOwnerDeletion" in self.message
        )

    @property
    def quota_exceeded(self) -> bool:
        """A ResourceQuota is exhausted. The API has no reason for this, only a message."""
        return self.status == 403 and "exceeded quota" in self.message

    @property
    def webhook_failed(self) -> bool:
        """An admission webhook of somebody else does not answer. The API has no reason for this, only a message."""
        return self.status == 500 and "failed calling webhook" in self.message

    @property
    def namespace_terminating(self) -> bool:
        """The namespace is terminating: the API server rejects new objects in it."""
        return "NamespaceTerminating" in self.causes or (
            self.status == 403 and "because it is being terminated" in self.message
        )

    @property
    def retryable(self) -> bool:
        """The same request may succeed later without any change."""
        return self.status in _RETRYABLE
