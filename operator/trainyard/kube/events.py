"""Kubernetes events, as `kubectl describe` shows them. A bystander: it never raises and never holds up a pass."""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import EVENTS
from trainyard.kube.session import Session
from trainyard.kube.token_bucket import TokenBucket

_LOG = logging.getLogger(__name__)
_LONGEST_NOTE = 1024  # bytes; the API refuses more
_REMEMBERED = 4096
_BURST = 25.0
_PER_SECOND = 0.1
_BACKLOG = 10_000
_PATIENCE = 1.0
_LOOK_AGAIN = 0.05


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


@dataclass(frozen=True, slots=True)
class _Told:
    """An event that waits to be written."""

    regarding: ObjectReference
    type: str
    reason: str
    note: str
    action: str
    name: str
    at: datetime


class EventRecorder:
    """Writes events, one for each thing that happened: a repeat, also after a crash, only raises its count.

    Each object may have a burst of 25 and then one in ten seconds; what is above is dropped. They are written one after
    the other by `run`, so that a thousand jobs that start at once do not have to wait for a thousand events.
    """

    def __init__(
        self,
        session: Session,
        component: str,
        instance: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] | None = None,
        busy: Callable[[], bool] = bool,
    ) -> None:
        """`component` is a qualified name ("trainyard.dev/operator"), `instance` the name of this pod.

        While `busy` says so an event waits, for a second at most: the API server has more urgent things to do.
        """
        self._writer = Writer(session)
        self._component = component
        self._instance = instance[:128]
        self._clock = clock
        self._now = now or session.clock.now
        self._busy = busy
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._backlog: asyncio.Queue[_Told] = asyncio.Queue(_BACKLOG)

    def record(
        self,
        regarding: ObjectReference,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own word
        reason: str,
        note: str,
        *,
        action: str,
        key: str,
        place: str = "",
    ) -> None:
        """Say what happened. `key` tells two events of one reason apart: the same key again is the same event again.

        `place`: letters and digits by which the events of one object are sorted. kubectl has nothing else: it looks at a time that new events may not have.
        """
        if not self._bucket(regarding.uid).take():
            return
        told = _Told(regarding, type, reason, note, action, _name(regarding, reason, key, place), self._now())
        try:
            self._backlog.put_nowait(told)
        except asyncio.QueueFull:
            _LOG.warning(
                f"event {reason} of {regarding.kind} {regarding.namespace}/{regarding.name} not written: too many wait"
            )

    async def run(self) -> None:
        """Write what is recorded, for ever."""
        while True:
            told = await self._backlog.get()
            for _ in range(round(_PATIENCE / _LOOK_AGAIN)):
                if not self._busy():
                    break
                await asyncio.sleep(_LOOK_AGAIN)
            await self._write(told)
            self._backlog.task_done()

    async def drain(self) -> None:
        """Wait until all that was recorded is written, by `run`."""
        await self._backlog.join()

    async def _write(self, told: _Told) -> None:
        try:
            if told.name in self._counts and await self._repeat(told, self._counts[told.name]):
                return
            await self._create(told)
        except ApiError as error:
            # In a namespace that is going away nobody reads events any more.
            level = logging.DEBUG if error.namespace_terminating or error.not_found else logging.WARNING
            about = told.regarding
            _LOG.log(level, f"event {told.reason} of {about.kind} {about.namespace}/{about.name} not written: {error}")

    async def _create(self, told: _Told) -> None:
        namespace = told.regarding.namespace
        manifest = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": told.name, "namespace": namespace},
            "eventTime": _timestamp(told.at),
            "reportingController": self._component,
            "reportingInstance": self._instance,
            "action": told.action,
            "reason": told.reason,
            "regarding": told.regarding.manifest(),
            "note": _cut(told.note),
            "type": told.type,
        }
        try:
            await self._writer.create(EVENTS, namespace, manifest)
        except ApiError as error:
            if not error.already_exists:
                raise
            # Written before this process was started: its count is known to the server alone.
            held = await self._writer.get(EVENTS, namespace, told.name) or {}
            await self._repeat(told, (held.get("series") or {}).get("count", 1))
        else:
            self._remember(told.name, 1)

    async def _repeat(self, told: _Told, count: int) -> bool:
        """Raise the count. False: the event has expired on the server."""
        series: dict[str, Any] = {"count": count + 1, "lastObservedTime": _timestamp(told.at)}
        try:
            await self._writer.merge(EVENTS, told.regarding.namespace, told.name, {"series": series})
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        self._remember(told.name, count + 1)
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


def _name(regarding: ObjectReference, reason: str, key: str, place: str) -> str:
    """The same for the same event, whoever computes it: that is what makes a repeat visible as one."""
    digest = hashlib.sha256(f"{regarding.uid}/{reason}/{key}".encode()).hexdigest()[:16]
    return f"{regarding.name[:200].rstrip('.-')}.{place}{digest}"


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _cut(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _LONGEST_NOTE:
        return note
    return encoded[: _LONGEST_NOTE - 3].decode(errors="ignore") + "…"
