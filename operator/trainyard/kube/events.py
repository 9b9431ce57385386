"""Kubernetes events, as `kubectl describe` shows them. Never raises and never delays a reconcile."""

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
from trainyard.kube.fair_queue import FairQueue
from trainyard.kube.resource import EVENTS
from trainyard.kube.session import Session
from trainyard.kube.token_bucket import TokenBuckets

_LOG = logging.getLogger(__name__)
_MAX_NOTE_BYTES = 1024
"""The API's limit."""
_MAX_CACHED_ENTRIES = 4096
"""Of events whose count is cached, and of objects whose rate is limited."""
_EVENT_BURST_PER_OBJECT = 25.0
_EVENTS_PER_SECOND_PER_OBJECT = 0.1
_EVENT_BURST_PER_NAMESPACE = 10_000.0
_EVENTS_PER_SECOND_PER_NAMESPACE = 20.0
_MAX_PENDING_EVENTS = 10_000
"""Of all namespaces. The one with the most pending events loses its own first."""
_DROP_LOG_SECONDS = 60.0
"""How often dropped events of one namespace are logged."""
_MAX_DELAY_SECONDS = 1.0
"""How long an event waits while the recorder is `busy`."""
_BUSY_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object that an event regards."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    def manifest(self) -> dict[str, str]:
        """Return it as a `v1.ObjectReference`."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }


@dataclass(frozen=True, slots=True)
class _PendingEvent:
    """An event that is not written yet."""

    regarding: ObjectReference
    type: str
    reason: str
    note: str
    action: str
    name: str
    at: datetime


class EventRecorder:
    """Writes one event for each occurrence: a repeat, also after a crash, only raises the event's count.

    Each object may have a burst of 25 events and then one in ten seconds. Each namespace may have 10,000 and then 20 a
    second. Events above this are dropped. `run` writes them one by one, in turn for each namespace. So a thousand jobs
    that start at once do not wait for a thousand events, and one namespace does not delay the others.
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

        While `busy` returns true an event waits for up to a second: the API server has more urgent requests.
        """
        self._writer = Writer(session)
        self._component = component
        self._instance = instance[:128]
        self._clock = clock
        self._now = now or session.clock.now
        self._busy = busy
        self._of_objects = TokenBuckets(
            _EVENTS_PER_SECOND_PER_OBJECT, _EVENT_BURST_PER_OBJECT, clock, _MAX_CACHED_ENTRIES
        )
        self._of_namespaces = TokenBuckets(
            _EVENTS_PER_SECOND_PER_NAMESPACE, _EVENT_BURST_PER_NAMESPACE, clock, _MAX_CACHED_ENTRIES
        )
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._names: OrderedDict[str, str] = OrderedDict()
        self._drops_logged: OrderedDict[str, float] = OrderedDict()
        self._pending: FairQueue[_PendingEvent] = FairQueue(_MAX_PENDING_EVENTS)

    def record(
        self,
        regarding: ObjectReference,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the API's own word
        reason: str,
        note: str,
        *,
        action: str,
        key: str,
        sort_key: str = "",
    ) -> None:
        """Queue an event. Two events of an object with one reason and one `key` are the same event, which only gets a
        higher count.

        `sort_key`: letters and digits that order the events of one object. kubectl sorts by name where new events lack
        the old timestamps. A repeat keeps the name of the first event. After a crash it is recognized by its name, so
        its sort key must be the same.
        """
        if not self._of_objects.take(regarding.uid):
            return
        if not self._of_namespaces.take(regarding.namespace):
            self._log_drop(regarding, reason, "its namespace has too many")
            return
        digest = hashlib.sha256(f"{regarding.uid}/{reason}/{key}".encode()).hexdigest()[:16]
        name = self._names.setdefault(digest, f"{regarding.name[:200].rstrip('.-')}.{sort_key}{digest}")
        _make_newest(self._names, digest)
        event = _PendingEvent(regarding, type, reason, note, action, name, self._now())
        if dropped := self._pending.put(regarding.namespace, event):
            self._log_drop(dropped.regarding, dropped.reason, "too many are pending")

    async def run(self) -> None:
        """Write the queued events, for ever."""
        while True:
            event = await self._pending.get()
            for _ in range(round(_MAX_DELAY_SECONDS / _BUSY_POLL_SECONDS)):
                if not self._busy():
                    break
                await asyncio.sleep(_BUSY_POLL_SECONDS)
            await self._write(event)
            self._pending.task_done()

    async def drain(self) -> None:
        """Wait until `run` has written all queued events."""
        await self._pending.join()

    async def _write(self, event: _PendingEvent) -> None:
        try:
            if event.name in self._counts and await self._repeat(event, self._counts[event.name]):
                return
            await self._create(event)
        except ApiError as error:
            # Events of a terminating namespace are of no use.
            level = logging.DEBUG if error.namespace_terminating or error.not_found else logging.WARNING
            regarding = event.regarding
            _LOG.log(
                level,
                f"cannot write event reason={event.reason} kind={regarding.kind} namespace={regarding.namespace} "
                f"name={regarding.name} "
                f"error={str(error)!r}",
            )

    async def _create(self, event: _PendingEvent) -> None:
        namespace = event.regarding.namespace
        manifest = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": event.name, "namespace": namespace},
            "eventTime": _timestamp(event.at),
            "reportingController": self._component,
            "reportingInstance": self._instance,
            "action": event.action,
            "reason": event.reason,
            "regarding": event.regarding.manifest(),
            "note": _cut(event.note),
            "type": event.type,
        }
        try:
            await self._writer.create(EVENTS, namespace, manifest)
        except ApiError as error:
            if not error.already_exists:
                raise
            # An earlier process wrote it: only the server knows its count.
            held = await self._writer.get(EVENTS, namespace, event.name) or {}
            await self._repeat(event, (held.get("series") or {}).get("count", 1))
        else:
            self._remember(event.name, 1)

    async def _repeat(self, event: _PendingEvent, count: int) -> bool:
        """Raise the event's count. Return False where the event has expired on the server."""
        series: dict[str, Any] = {"count": count + 1, "lastObservedTime": _timestamp(event.at)}
        try:
            await self._writer.merge(EVENTS, event.regarding.namespace, event.name, {"series": series})
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        self._remember(event.name, count + 1)
        return True

    def _remember(self, name: str, count: int) -> None:
        self._counts[name] = count
        _make_newest(self._counts, name)

    def _log_drop(self, regarding: ObjectReference, why: str, because: str) -> None:
        """Log a dropped event, at most once a minute for each namespace: the log has a budget as well."""
        now = self._clock()
        if now < self._drops_logged.get(regarding.namespace, now):
            return
        self._drops_logged[regarding.namespace] = now + _DROP_LOG_SECONDS
        _make_newest(self._drops_logged, regarding.namespace)
        _LOG.warning(
            f"dropped event, {because} reason={why} kind={regarding.kind} "
            f"namespace={regarding.namespace} name={regarding.name}"
        )


def _make_newest(cache: OrderedDict[str, Any], key: str) -> None:
    """Move a key to the end, and drop the oldest one where the cache is full."""
    cache.move_to_end(key)
    if len(cache) > _MAX_CACHED_ENTRIES:
        cache.popitem(last=False)


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _cut(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _MAX_NOTE_BYTES:
        return note
    return encoded[: _MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"
