"""Kubernetes events, as `kubectl describe` shows them. A bystander: it never raises and never holds up a pass for long."""

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from trainyard.kube.apply import Writer
from trainyard.kube.bucket import TokenBucket
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import EVENTS
from trainyard.kube.session import Session

_LOG = logging.getLogger(__name__)
_LONGEST_NOTE = 1024  # bytes; the API refuses more
_REMEMBERED = 4096
_BURST = 25.0
_PER_SECOND = 0.1


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """What an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    def manifest(self) -> dict[str, str]:
        """As a `v1.ObjectReference`."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }


def _now() -> datetime:
    return datetime.now(UTC)


class EventRecorder:
    """Writes events, one for each thing that happened: a repeat, also after a crash, only raises its count.

    Each object may have a burst of 25 and then one in ten seconds; what is above is dropped.
    """

    def __init__(
        self,
        session: Session,
        component: str,
        instance: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _now,
    ) -> None:
        """`component` is a qualified name ("trainyard.dev/operator"), `instance` the name of this pod."""
        self._writer = Writer(session)
        self._component = component
        self._instance = instance[:128]
        self._clock = clock
        self._now = now
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._counts: OrderedDict[str, int] = OrderedDict()

    async def record(
        self,
        regarding: ObjectReference,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own word
        reason: str,
        note: str,
        *,
        action: str,
        key: str,
    ) -> None:
        """Say what happened. `key` tells two events of one reason apart: the same key again is the same event again."""
        if not self._bucket(regarding.uid).take():
            return
        name = _name(regarding, reason, key)
        try:
            if name in self._counts and await self._repeat(regarding.namespace, name, self._counts[name]):
                return
            await self._create(regarding, name, type, reason, note, action)
        except ApiError as error:
            # In a namespace that is going away nobody reads events any more.
            level = logging.DEBUG if error.namespace_terminating or error.not_found else logging.WARNING
            _LOG.log(
                level, f"event {reason} of {regarding.kind} {regarding.namespace}/{regarding.name} not written: {error}"
            )

    async def _create(
        self, regarding: ObjectReference, name: str, kind: str, reason: str, note: str, action: str
    ) -> None:
        manifest = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": regarding.namespace},
            "eventTime": _timestamp(self._now()),
            "reportingController": self._component,
            "reportingInstance": self._instance,
            "action": action,
            "reason": reason,
            "regarding": regarding.manifest(),
            "note": _cut(note),
            "type": kind,
        }
        try:
            await self._writer.create(EVENTS, regarding.namespace, manifest)
        except ApiError as error:
            if not error.already_exists:
                raise
            # Written before this process was started: its count is known to the server alone.
            held = await self._writer.get(EVENTS, regarding.namespace, name) or {}
            await self._repeat(regarding.namespace, name, (held.get("series") or {}).get("count", 1))
        else:
            self._remember(name, 1)

    async def _repeat(self, namespace: str, name: str, count: int) -> bool:
        """Raise the count. False: the event has expired on the server."""
        series: dict[str, Any] = {"count": count + 1, "lastObservedTime": _timestamp(self._now())}
        try:
            await self._writer.merge(EVENTS, namespace, name, {"series": series})
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        self._remember(name, count + 1)
        return True

    def _remember(self, name: str, count: int) -> None:
        self._counts[name] = count
        self._counts.move_to_end(name)
        if len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)

    def _bucket(self, uid: str) -> TokenBucket:
        bucket = self._buckets.setdefault(uid, TokenBucket(_PER_SECOND, _BURST, self._clock))
        self._buckets.move_to_end(uid)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return bucket


def _name(regarding: ObjectReference, reason: str, key: str) -> str:
    """The same for the same event, whoever computes it: that is what makes a repeat visible as one."""
    digest = hashlib.sha256(f"{regarding.uid}/{reason}/{key}".encode()).hexdigest()[:16]
    return f"{regarding.name[:200].rstrip('.-')}.{digest}"


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _cut(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _LONGEST_NOTE:
        return note
    return encoded[: _LONGEST_NOTE - 3].decode(errors="ignore") + "…"
