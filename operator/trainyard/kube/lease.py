"""A Lease, read and written with the version it was read at. Knows how one is spelt; who may hold it is decided elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.kube.errors import ApiError
from trainyard.kube.resource import Resource
from trainyard.kube.session import Session

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")


_MOST_TRANSITIONS = 2**31 - 1
"""What the API takes. Somebody may have set it so high by hand."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What the API server holds. Everything in it may have been written by somebody else, and badly."""

    raw: Mapping[str, Any]

    @property
    def record(self) -> Mapping[str, Any]:
        """All that a holder writes: two equal ones mean that it has not been heard of between them."""
        return self.raw.get("spec") or {}

    @property
    def holder(self) -> str:
        """Whose it is; empty where it was given back, or never taken."""
        return str(self.record.get("holderIdentity") or "")

    @property
    def seconds(self) -> float:
        """For how long the holder asked for it; 0 where that cannot be read."""
        return _number(self.record.get("leaseDurationSeconds"))

    @property
    def transitions(self) -> int:
        """How often it has gone from one holder to another."""
        return int(_number(self.record.get("leaseTransitions")))


@dataclass(frozen=True, slots=True)
class LeaseClient:
    """One Lease on the API server. All methods raise `ApiError`."""

    session: Session
    """Not the one that everything else goes through: a renewal must not wait behind a thousand pods."""
    namespace: str
    name: str

    async def read(self, *, within: float) -> Lease | None:
        """The Lease as the server has it now; None where there is none. Takes `within` seconds at most."""
        try:
            return Lease(await self.session.request("GET", LEASES.path(self.namespace, self.name), timeout=within))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def take(self, seen: Lease | None, identity: str, seconds: float, *, within: float) -> Lease:
        """Make it `identity`'s, for so many seconds from now. The answer is a conflict where it is not as `seen` any more."""
        now = self._timestamp()
        if seen is not None and seen.holder == identity:
            record = {**seen.record, "leaseDurationSeconds": round(seconds), "renewTime": now}
        else:
            record = {
                "holderIdentity": identity,
                "leaseDurationSeconds": round(seconds),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0 if seen is None else min(seen.transitions + 1, _MOST_TRANSITIONS),
            }
        return await self._write(seen, record, within)

    async def give_back(self, seen: Lease, *, within: float) -> Lease:
        """Make it nobody's, so that the next one need not wait."""
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
        # Labels and whatever else is on it stay; the version in the metadata is what makes this a conflict for all but one.
        body = {**seen.raw, "spec": record}
        return Lease(await self.session.request("PUT", path, body=body, timeout=within))

    def _timestamp(self) -> str:
        """For people to read: no decision rests on a time that stands in a Lease."""
        return self.session.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
