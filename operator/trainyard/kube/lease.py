"""Read and write a Lease, fenced by its resourceVersion. Knows its format; the elector decides who may hold it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.kube.errors import ApiError
from trainyard.kube.resource import Resource
from trainyard.kube.session import Session

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


_MAX_TRANSITIONS = 2**31 - 1
"""The API's maximum. Somebody may have set the field this high by hand."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as the API server holds it. Any client may have written any field, with any value."""

    raw: Mapping[str, Any]

    @property
    def record(self) -> Mapping[str, Any]:
        """The lease's `spec`. Two equal records mean that the holder has not renewed in between."""
        return self.raw.get("spec") or {}

    @property
    def holder(self) -> str:
        """The holder's identity; empty where the lease was released or never taken."""
        return str(self.record.get("holderIdentity") or "")

    @property
    def seconds(self) -> float:
        """The lease duration in seconds; 0 where the field is missing or malformed."""
        return _number(self.record.get("leaseDurationSeconds"))

    @property
    def transitions(self) -> int:
        """How often the holder has changed."""
        return int(_number(self.record.get("leaseTransitions")))


@dataclass(frozen=True, slots=True)
class LeaseClient:
    """One Lease on the API server. All methods raise `ApiError`."""

    session: Session
    """A session of its own: a renewal must not queue behind a thousand requests for pods."""
    namespace: str
    name: str

    async def read(self, *, within: float) -> Lease | None:
        """Return the Lease as the server has it now, or None. Takes at most `within` seconds."""
        try:
            return Lease(await self.session.request("GET", LEASES.path(self.namespace, self.name), timeout=within))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def take(self, seen: Lease | None, identity: str, seconds: float, *, within: float) -> Lease:
        """Take or renew the Lease for `identity` for this many seconds. Fails with a conflict where it has changed
        since `seen`.
        """
        now = self._timestamp()
        if seen is not None and seen.holder == identity:
            record = {**seen.record, "leaseDurationSeconds": round(seconds), "renewTime": now}
        else:
            record = {
                "holderIdentity": identity,
                "leaseDurationSeconds": round(seconds),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0 if seen is None else min(seen.transitions + 1, _MAX_TRANSITIONS),
            }
        return await self._write(seen, record, within)

    async def release(self, seen: Lease, *, within: float) -> Lease:
        """Clear the holder, so that the next leader need not wait for the lease to expire."""
        return await self._write(seen, {**seen.record, "holderIdentity": "", "renewTime": self._timestamp()}, within)

    async def _write(self, seen: Lease | None, record: Mapping[str, Any], within: float) -> Lease:
        if seen is None:
            manifest = {
                "apiVersion": LEASES.api_version,
                "kind": LEASES.kind,
                "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": record,
            }
            path = LEASES.path(self.namespace)
            return Lease(await self.session.request("POST", path, body=manifest, timeout=within))
        path = LEASES.path(self.namespace, self.name)
        # Other fields, such as labels, stay. The version in the metadata lets only one writer succeed.
        body = {**seen.raw, "spec": record}
        return Lease(await self.session.request("PUT", path, body=body, timeout=within))

    def _timestamp(self) -> str:
        """Return the time as the API formats it. Informational: no decision uses the timestamps of a Lease."""
        return self.session.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
