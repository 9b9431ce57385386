"""Keeps a store equal to the API server's objects of one kind: list, watch, and list again where the watch has a gap.

Survives everything but cancellation. Knows nothing about the objects and does no work in its callbacks.
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
from trainyard.kube.resource import Resource, namespace_label
from trainyard.kube.session import Session
from trainyard.kube.store import Store, Stored

T = TypeVar("T", bound=Stored)
K = TypeVar("K", bound=Hashable)

_LOG = logging.getLogger(__name__)
_MAX_WATCH_REJECTIONS = 3
"""After this many consecutive rejections of a watch its resourceVersion is taken for the reason, and a list follows."""
_MIN_WATCH_SECONDS = 1.0
"""A watch that ends sooner without an event of an object is restarted after a pause."""
_RELIST_REASONS = frozenset({"MalformedEvent", "MalformedAnswer", "Silent", "TooOld"})
_RESTORE_CONFIRM_SECONDS = 30.0
"""A server that returns old versions for this long does not lag behind: the cluster was restored from a backup."""
_FAILURE_RESET_SECONDS = 60.0
"""A failure this long after the last one counts as the first again. Successful lists do not reset the
count: there may be many of them between two failures."""


class RestoredError(Exception):
    """The cluster was restored to an older state, for example from a backup. The caches describe a history that no
    longer exists.
    """


@dataclass(slots=True, eq=False)
class Reflector(Generic[T, K]):
    """Copies one kind of object from the server into a store.

    `run` cycles through three states: nothing known (list), a version to watch from (watch), and a pause after a
    failure. A broken watch resumes from the last version seen. If the server has compacted that version away (410), a
    list follows, and the store finds by comparison what was deleted meanwhile.
    """

    session: Session
    resource: Resource
    project: Callable[[dict[str, Any]], T]
    """Extracts the relevant fields from raw JSON. May raise: the object is then logged once and stays as last
    readable."""
    store: Store[T, K]
    on_change: Callable[[K], None]
    """Called for each owner whose objects changed. Must return at once: the watch waits for it."""
    label_selector: str | None = None
    namespace: str | None = None
    """None: all namespaces."""
    page_size: int = 500
    idle_timeout: float = 90.0
    """Seconds of silence after which a watch counts as dead. The server sends a bookmark about once a minute."""
    watch_seconds: int = 300
    """The server ends a watch after this long, and it resumes at once: connections rebalance after a fail-over."""
    clock: Callable[[], float] = time.monotonic
    backoff: Callable[[int], float] = field(default_factory=lambda: Backoff(cap=30.0))
    synced: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Set when the first list is complete; never cleared."""
    _version: str | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _failed_at: float = field(default=0.0, init=False)
    _active_at: float = field(default=0.0, init=False)
    _behind_since: float | None = field(default=None, init=False)
    _last_warning: str | None = field(default=None, init=False)
    _unreadable: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._active_at = self.clock()

    @override
    def __str__(self) -> str:
        return f"{self.resource.qualified} in {namespace_label(self.namespace)}"

    def age(self) -> float:
        """Seconds since the last page, event or bookmark of the server (or since this object was created)."""
        return self.clock() - self._active_at

    async def run(self) -> None:
        """List and watch for ever. Raises RestoredError where the cluster was restored and the cache is worthless."""
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
                # An unexpected answer or a bug: without this stream the operator would see no more changes of this
                # kind.
                _LOG.exception(f"reflector failed, restarting from a list resource={self.resource.qualified}")
                await self._pause(ApiError(0, "MalformedAnswer", f"{type(error).__name__}: {error}"))

    async def refresh(self) -> None:
        """List once more while the watch goes on: the store then shows everything written before this call.

        Raises `ApiError`, and RestoredError.
        """
        await self._list()

    async def _list(self) -> None:
        path, before = self.resource.path(self.namespace), self.store.seen
        read, version = await read_all(
            self.session, path, self._selection(), self.page_size, self._uid_and_object, self._record_activity
        )
        # An unreadable object still exists: leaving it out would make it look deleted.
        objects = [found for uid, obj in read if (found := obj or self.store.get(uid)) is not None]
        self._check_list_version(int(version), before)
        self._check_object_versions(objects, int(version))
        changed = self.store.replace(objects, int(version))
        self._unreadable &= {uid for uid, _ in read}
        self._version = version
        self.synced.set()
        self._notify(changed)

    def _check_list_version(self, version: int, before: int) -> None:
        """Raise where a list is older than what was seen before it was requested."""
        if version >= before:
            self._behind_since = None
            return
        now = self.clock()
        since = self._behind_since = now if self._behind_since is None else self._behind_since
        versions = f"the API server is at version {version} of {self}, and was at {before} before"
        if now - since > _RESTORE_CONFIRM_SECONDS:
            raise RestoredError(f"{versions}: the cluster seems to have been restored from a backup")
        raise ApiError(0, "TooOld", versions)

    def _check_object_versions(self, objects: Iterable[T], version: int) -> None:
        """Raise where an object in a complete list is older than it was seen before that list."""
        for obj in objects:
            known = self.store.get(obj.uid)
            if known is not None and obj.resource_version < known.resource_version <= version:
                raise RestoredError(
                    f"an object of {self} is at version {obj.resource_version} again, and was at {known.resource_version}"
                    " before: the cluster seems to have been restored from a backup"
                )

    def _uid_and_object(self, item: dict[str, Any]) -> tuple[str, T | None]:
        return _uid(item), self._project(item)

    async def _watch(self) -> None:
        params = self._selection() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self._version),
            "timeoutSeconds": str(self.watch_seconds),
        }
        events = self.session.stream(self.resource.path(self.namespace), params, idle_timeout=self.idle_timeout)
        started = self.clock()
        if not await self._follow(events) and self.clock() - started < _MIN_WATCH_SECONDS:
            # Without a pause, a server that ends each watch at once would be asked in a tight loop.
            raise ApiError(0, "EmptyWatch", "the watch ended at once, without an event")

    async def _follow(self, events: AsyncGenerator[dict[str, Any], None]) -> bool:
        """Apply events until the stream ends. Return whether any event was about an object."""
        has_objects = False
        async with aclosing(events) as stream:
            async for event in stream:
                self._apply(event)
                self._record_activity()
                has_objects |= event["type"] != "BOOKMARK"
        return has_objects

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
                self._notify(self.store.remove(_uid(item), int(version)))
            case "ADDED" | "MODIFIED":
                obj = self._project(item)
                if obj is not None:
                    self._notify(self.store.apply(obj))
            case _:
                raise ApiError(0, "MalformedEvent", f"the watch has an event of an unknown type: {kind!r}")
        self._version = version

    def _project(self, item: dict[str, Any]) -> T | None:
        uid = _uid(item)
        try:
            obj = self.project(item)
        except Exception as error:  # noqa: BLE001 - one bad object must not stop the events of the others
            if uid not in self._unreadable:
                self._unreadable.add(uid)
                _LOG.warning(
                    f"cannot read object, keeping its last readable state resource={self.resource.qualified} "
                    f"name={_name(item)} error={f'{type(error).__name__}: {error}'!r}"
                )
            return None
        self._unreadable.discard(uid)
        return obj

    def _notify(self, changed: Iterable[K]) -> None:
        for key in changed:
            self.on_change(key)

    def _record_activity(self) -> None:
        self._active_at = self.clock()
        if self._last_warning is not None and self._behind_since is None:
            self._last_warning = None
            _LOG.info(
                f"reflector recovered resource={self.resource.qualified} scope={namespace_label(self.namespace)!r}"
            )

    async def _pause(self, error: ApiError) -> None:
        now = self.clock()
        self._failures = 1 if now - self._failed_at > _FAILURE_RESET_SECONDS else self._failures + 1
        self._failed_at = now
        # Only a list recovers a lost or broken event, or a version that the server does not know. A server that was
        # restored to an older state sends nothing to a watch from a version that is yet to come.
        if error.gone or error.reason in _RELIST_REASONS or (error.status and self._failures >= _MAX_WATCH_REJECTIONS):
            self._version = None
        self._warn_once(error)
        await asyncio.sleep(max(self.backoff(self._failures), error.retry_after or 0.0))

    def _warn_once(self, error: ApiError) -> None:
        """Log the first of consecutive failures. The permission tracker logs missing permissions."""
        if error.gone or error.permission_denied or error.reason == "EmptyWatch":
            return
        if self._last_warning is None:
            _LOG.warning(f"watching {self} failed, retrying error={str(error)!r}")
            self._last_warning = error.message

    def _selection(self) -> dict[str, str]:
        return {} if self.label_selector is None else {"labelSelector": self.label_selector}


def _uid(item: dict[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("uid"))


def _name(item: dict[str, Any]) -> str:
    metadata = item.get("metadata") or {}
    return "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))
