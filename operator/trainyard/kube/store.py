"""Cache of one kind of object. No I/O, no tasks: the reflector writes it, reconciles read it between awaits."""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar


class Stored(Protocol):
    """The fields of an object that the store needs."""

    @property
    def uid(self) -> str:
        """`metadata.uid`: a cluster never reuses one."""

    @property
    def resource_version(self) -> int:
        """`metadata.resourceVersion`: within one kind a greater one is newer (KEP-5504)."""


T = TypeVar("T", bound=Stored)
K = TypeVar("K", bound=Hashable)

MAX_REMEMBERED_DELETIONS = 4096
"""Above this, deletions at or below the floor are forgotten."""


class Store(Generic[T, K]):
    """Objects by UID, and by the key of their owner (`index`; None: no owner).

    Events may arrive late, twice or out of order; only a newer version counts. All events up to the version `_floor`
    have arrived: an object that is unknown and not newer than the floor was deleted. Deletions after the floor, and
    thousands before it, are remembered, so that neither a late event nor a late answer revives a deleted object.
    """

    def __init__(self, index: Callable[[T], K | None]) -> None:
        self._index = index
        self._objects: dict[str, T] = {}
        self._owned: dict[K, dict[str, T]] = {}
        self._deleted: dict[str, int] = {}
        self._early: set[str] = set()
        """UIDs of objects that this process created and whose events have not arrived."""
        self._floor = 0
        self._seen = 0

    @property
    def seen(self) -> int:
        """The newest resourceVersion seen in objects, bookmarks and lists."""
        return self._seen

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, uid: str) -> T | None:
        """Return the object with this UID, or None."""
        return self._objects.get(uid)

    def values(self) -> Iterable[T]:
        """Return all objects, as a view: it must not be kept."""
        return self._objects.values()

    def knows(self, uid: str, version: int) -> bool:
        """Return whether the store holds the object at this version or a later one."""
        held = self._objects.get(uid)
        return held is not None and held.resource_version >= version

    def of(self, key: K) -> tuple[T, ...]:
        """Return all objects of one owner, in the order in which they were first seen."""
        return tuple(self._owned.get(key, {}).values())

    def count(self, key: K) -> int:
        """Return the number of objects of the owner."""
        return len(self._owned.get(key, ()))

    def keys(self) -> tuple[K, ...]:
        """Return all owners that own an object."""
        return tuple(self._owned)

    def apply(self, obj: T) -> set[K]:
        """Store an added or changed object. Return the keys whose objects changed; empty where the event is old."""
        self._seen = max(self._seen, obj.resource_version)
        held = self._objects.get(obj.uid)
        known = max(self._deleted.get(obj.uid, 0), self._floor) if held is None else held.resource_version
        early = obj.uid in self._early
        self._early.discard(obj.uid)
        if obj.resource_version <= known:
            # The first event of an object that this process created counts as a change.
            return {key} if early and held and (key := self._index(held)) is not None else set()
        self._deleted.pop(obj.uid, None)
        return self._put(obj, held)

    def record_created(self, obj: T) -> None:
        """Store an object that this process created: it exists even where its events get lost."""
        seen = self._seen
        if obj.uid not in self._objects and self.apply(obj):
            self._early.add(obj.uid)
        # Not an event: earlier writes may still be on their way.
        self._seen = seen

    def record_found(self, obj: T) -> set[K]:
        """Store an object that was read by a GET: it exists even where its events got lost. Return what `apply`
        does.
        """
        if obj.uid in self._objects or obj.uid in self._deleted:
            return self.apply(obj)
        self._seen = max(self._seen, obj.resource_version)
        return self._put(obj, None)

    def remove(self, uid: str, version: int | None = None) -> set[K]:
        """Remove a deleted object. `version` is that of the deletion; without it the deletion is newer than everything
        seen.
        """
        held = self._objects.get(uid)
        if version is None:
            version = self._seen if held is None else max(self._seen, held.resource_version)
        self._seen = max(self._seen, version)
        if held is not None and held.resource_version > version:
            return set()
        self._deleted[uid] = max(version, self._deleted.get(uid, 0))
        return set() if held is None else self._drop(held)

    def observe(self, version: int) -> None:
        """Record a bookmark: all events up to this version have arrived."""
        self._seen = max(self._seen, version)
        if version > self._floor:
            self._floor = version
            if len(self._deleted) > MAX_REMEMBERED_DELETIONS:
                self._deleted = {uid: at for uid, at in self._deleted.items() if at > version}

    def replace(self, objs: Iterable[T], version: int) -> set[K]:
        """Replace the content by a complete list as of `version`. Objects that it lacks are gone, unless they are
        newer.

        Return the keys of all changed owners, those of vanished objects included. Runs without awaits, so it is atomic.
        A list older than the floor comes from a server that lags behind, and is ignored.
        """
        if version < self._floor:
            return set()
        changed: set[K] = set()
        listed = {obj.uid: obj for obj in objs}
        for held in [*self._objects.values()]:
            if held.uid not in listed and held.resource_version <= version:
                changed |= self._drop(held)
                self._deleted[held.uid] = version
        for obj in listed.values():
            known = self._objects.get(obj.uid)
            oldest = self._deleted.get(obj.uid, 0) if known is None else known.resource_version
            if obj.resource_version > oldest:
                changed |= self._put(obj, known)
        self.observe(version)
        return changed

    def _put(self, obj: T, held: T | None) -> set[K]:
        key = self._index(obj)
        changed = set() if held is None or self._index(held) == key else self._drop(held)
        self._objects[obj.uid] = obj
        if key is not None:
            self._owned.setdefault(key, {})[obj.uid] = obj
            changed.add(key)
        return changed

    def _drop(self, held: T) -> set[K]:
        del self._objects[held.uid]
        self._early.discard(held.uid)
        key = self._index(held)
        if key is None:
            return set()
        owned = self._owned[key]
        del owned[held.uid]
        if not owned:
            del self._owned[key]
        return {key}
