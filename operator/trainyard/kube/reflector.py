"""Keeps a store equal to what the API server holds of one kind: list, watch, and list again where the watch has a gap.

Survives everything but cancellation. Knows nothing of what the objects mean and does no work in its callbacks.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from typing_extensions import override

from trainyard.kube.backoff import Backoff
from trainyard.kube.errors import ApiError
from trainyard.kube.listing import read_all, version_of
from trainyard.kube.resource import Resource, place
from trainyard.kube.session import Session
from trainyard.kube.store import Store, Stored

T = TypeVar("T", bound=Stored)
K = TypeVar("K", bound=Hashable)

_LOG = logging.getLogger(__name__)
_ANSWERED_FAILURES = 3
"""So many refusals of the same watch in a row, and the version it starts from is held to be the reason."""
_SHORTEST_WATCH = 1.0
"""A watch that tells of no object and ends sooner is begun anew after a pause."""
_BROKEN = frozenset({"MalformedEvent", "MalformedAnswer", "Silent", "TooOld"})
_RESTORED_SECONDS = 30.0
"""A server that tells for so long of times before those already heard of does not lag behind: it has another past."""
_CALM_SECONDS = 60.0
"""A failure so long after the last one counts as the first again. Not an answer: between two failures there may be many good lists."""


class RestoredError(Exception):
    """The cluster was brought back to an older state, from a backup say. What is known of it is of a past that never was."""


@dataclass(slots=True, eq=False)
class Reflector(Generic[T, K]):
    """One kind of object, from the server into a store.

    `run` goes round three states: nothing known (list), a version to watch from (watch), and a pause after a failure. A watch
    that breaks off goes on from the last version heard; one whose version the server has compacted away (410) starts from a
    list, and the store finds out by comparison what has been deleted meanwhile.
    """

    session: Session
    resource: Resource
    project: Callable[[dict[str, Any]], T]
    """Raw JSON to the few fields that matter. May raise: the object is then logged once and left as it was last readable."""
    store: Store[T, K]
    on_change: Callable[[K], None]
    """Called for each owner whose objects have changed. Must only take a note of it: everything else waits meanwhile."""
    label_selector: str | None = None
    namespace: str | None = None
    """None: all namespaces."""
    page_size: int = 500
    idle_timeout: float = 90.0
    """Seconds of silence after which a watch counts as dead; the server sends a bookmark about once a minute."""
    watch_seconds: int = 300
    """After so long the server is asked to end the watch, which resumes at once: connections move after a fail-over."""
    clock: Callable[[], float] = time.monotonic
    backoff: Callable[[int], float] = field(default_factory=lambda: Backoff(cap=30.0))
    synced: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set once the first list is complete, never cleared."""
    _version: str | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _failed_at: float = field(default=0.0, init=False)
    _heard_at: float = field(default=0.0, init=False)
    _behind_since: float | None = field(default=None, init=False)
    _complaint: str | None = field(default=None, init=False)
    _unreadable: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._heard_at = self.clock()

    @override
    def __str__(self) -> str:
        return f"{self.resource.qualified} in {place(self.namespace)}"

    def age(self) -> float:
        """Seconds since the server was last heard: a page of a list, an event, a bookmark (or since this was made)."""
        return self.clock() - self._heard_at

    async def run(self) -> None:
        """List and watch for ever. Raises RestoredError where all that is known has become worthless."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except ApiError as error:
                await self._pause(error)
            except RestoredError:
                raise
            except Exception as error:  # noqa: BLE001 - see below
                # An answer of a shape nobody thought of, or a bug: without this stream the operator would be blind for good.
                _LOG.exception(f"reading {self} failed, starting again from a list")
                await self._pause(ApiError(0, "MalformedAnswer", f"{type(error).__name__}: {error}"))

    async def refresh(self) -> None:
        """List once more, while the watch goes on: the store then shows all that was written before this call.

        Raises `ApiError`, and RestoredError.
        """
        await self._list()

    async def _list(self) -> None:
        path, before = self.resource.path(self.namespace), self.store.seen
        raw, version = await read_all(self.session, path, self._selection(), self.page_size, self._hear)
        objects = [*self._readable(raw)]
        self._check_time(int(version), before)
        self._check_past(objects, int(version))
        changed = self.store.replace(objects, int(version))
        self._unreadable &= {_uid(item) for item in raw}
        self._version = version
        self.synced.set()
        self._tell(changed)

    def _check_time(self, version: int, before: int) -> None:
        """A list holds all that was heard before it was asked for. Raises where its version says that it does not."""
        if version >= before:
            self._behind_since = None
            return
        now = self.clock()
        since = self._behind_since = now if self._behind_since is None else self._behind_since
        told = f"the API server is at version {version} of {self}, and was at {before} before"
        if now - since > _RESTORED_SECONDS:
            raise RestoredError(f"{told}: the cluster seems to have been restored from a backup")
        raise ApiError(0, "TooOld", told)

    def _check_past(self, objects: Iterable[T], version: int) -> None:
        """An object of a complete list cannot be older than what was heard of it before that list was made."""
        for obj in objects:
            known = self.store.get(obj.uid)
            if known is not None and obj.resource_version < known.resource_version <= version:
                raise RestoredError(
                    f"an object of {self} is at version {obj.resource_version} again, and was at {known.resource_version}"
                    " before: the cluster seems to have been restored from a backup"
                )

    def _readable(self, raw: Iterable[dict[str, Any]]) -> Iterable[T]:
        for item in raw:
            # An object that cannot be read any more is still there: to drop it would make it look deleted.
            obj = self._project(item) or self.store.get(_uid(item))
            if obj is not None:
                yield obj

    async def _watch(self) -> None:
        params = self._selection() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(self.watch_seconds),
        }
        events = self.session.stream(self.resource.path(self.namespace), params, idle_timeout=self.idle_timeout)
        began = self.clock()
        if not await self._follow(events) and self.clock() - began < _SHORTEST_WATCH:
            # A server that ends each watch at once would otherwise be asked in a tight loop.
            raise ApiError(0, "EmptyWatch", "the watch ended at once, without a word about an object")

    async def _follow(self, events: AsyncGenerator[dict[str, Any], None]) -> bool:
        """Apply events until the stream ends. Whether there were any of objects."""
        spoken = False
        async with aclosing(events) as stream:
            async for event in stream:
                self._apply(event)
                self._hear()
                spoken |= event["type"] != "BOOKMARK"
        return spoken

    def _apply(self, event: dict[str, Any]) -> None:
        kind, item = event.get("type"), event.get("object")
        if not isinstance(item, dict):
            raise ApiError(0, "MalformedEvent", "an event of the watch has no object")
        if kind == "ERROR":
            raise ApiError.from_status(0, item)
        version = version_of(item)
        match kind:
            case "BOOKMARK":
                self.store.observe(int(version))
            case "DELETED":
                self._unreadable.discard(_uid(item))
                self._tell(self.store.remove(_uid(item), int(version)))
            case "ADDED" | "MODIFIED":
                obj = self._project(item)
                if obj is not None:
                    self._tell(self.store.apply(obj))
            case _:
                raise ApiError(0, "MalformedEvent", f"the watch has an event of an unknown type: {kind!r}")
        self._version = version

    def _project(self, item: dict[str, Any]) -> T | None:
        uid = _uid(item)
        try:
            obj = self.project(item)
        except Exception as error:  # noqa: BLE001 - whatever one object does to the projection, the others are still to be heard of
            if uid not in self._unreadable:
                self._unreadable.add(uid)
                _LOG.warning(
                    f"cannot read {self.resource.qualified} {_name(item)}, leaving it as it was: {type(error).__name__}: {error}"
                )
            return None
        self._unreadable.discard(uid)
        return obj

    def _tell(self, changed: Iterable[K]) -> None:
        for key in changed:
            self.on_change(key)

    def _hear(self) -> None:
        self._heard_at = self.clock()
        if self._complaint is not None and self._behind_since is None:
            self._complaint = None
            _LOG.info(f"the API server answers again on {self}")

    async def _pause(self, error: ApiError) -> None:
        now = self.clock()
        self._failures = 1 if now - self._failed_at > _CALM_SECONDS else self._failures + 1
        self._failed_at = now
        # A lost or broken event can be had again only from a list; so can a version the server does not know. A server that was
        # restored to an older state says nothing at all to a watch from a version that is yet to come.
        if error.gone or error.reason in _BROKEN or (error.status and self._failures >= _ANSWERED_FAILURES):
            self._version = None
        self._complain(error)
        await asyncio.sleep(max(self.backoff(self._failures), error.retry_after or 0.0))

    def _complain(self, error: ApiError) -> None:
        """Say each trouble once: at the first failure in a row. A right that is missing is told of by `Rights`."""
        if error.gone or error.lacks_right or error.reason == "EmptyWatch":
            return
        if self._complaint is None:
            _LOG.warning(f"watching {self} failed, trying again until it works: {error}")
            self._complaint = error.message

    def _selection(self) -> dict[str, str]:
        return {} if self.label_selector is None else {"labelSelector": self.label_selector}


def _uid(item: dict[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("uid"))


def _name(item: dict[str, Any]) -> str:
    metadata = item.get("metadata") or {}
    return "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
