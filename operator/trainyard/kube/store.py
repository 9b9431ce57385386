"""What the cluster holds of one kind, as last heard. No I/O, no tasks: the reflector writes it, passes read it between awaits."""

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, Protocol, TypeVar


class Stored(Protocol):
    """What the store needs to know of an object."""

    @property
    def uid(self) -> str:
        """`metadata.uid`: never used twice by a cluster."""

    @property
    def resource_version(self) -> int:
        """`metadata.resourceVersion`: within one kind a greater one is newer (KEP-5504)."""


T = TypeVar("T", bound=Stored)
K = TypeVar("K", bound=Hashable)

REMEMBERED = 4096
"""Deletions that may be remembered longer than until the floor has passed them."""


class Store(Generic[T, K]):
    """Objects by UID, and by the key of whoever owns them (`index`; None: nobody's).

    Events may come late, twice or out of order; only what is newer than the known counts. `_floor` is the version up to which
    everything has been heard: an object that is unknown and not newer than that has been deleted. Deletions after the floor,
    and thousands before it, are remembered, so that neither a late event nor a late answer brings an object back to life.
    """

    def __init__(self, index: Callable[[T], K | None]) -> None:
        self._index = index
        self._objects: dict[str, T] = {}
        self._owned: dict[K, dict[str, T]] = {}
        self._deleted: dict[str, int] = {}
        self._early: set[str] = set()
        """Of what this process has made and has not been told of."""
        self._floor = 0
        self._seen = 0

    @property
    def seen(self) -> int:
        """The newest resourceVersion heard of, in objects, bookmarks and lists."""
        return self._seen

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, uid: str) -> T | None:
        """The object with this UID."""
        return self._objects.get(uid)

    def knows(self, uid: str, version: int) -> bool:
        """Whether it holds the object as of this version, or a later one."""
        held = self._objects.get(uid)
        return held is not None and held.resource_version >= version

    def of(self, key: K) -> tuple[T, ...]:
        """All objects of one owner, in the order in which they were first heard of."""
        return tuple(self._owned.get(key, {}).values())

    def count(self, key: K) -> int:
        """How many objects the owner has."""
        return len(self._owned.get(key, ()))

    def keys(self) -> tuple[K, ...]:
        """All owners that own something."""
        return tuple(self._owned)

    def apply(self, obj: T) -> set[K]:
        """An object was added or changed. Returns the keys whose objects are now others: none if this was no news."""
        self._seen = max(self._seen, obj.resource_version)
        held = self._objects.get(obj.uid)
        known = max(self._deleted.get(obj.uid, 0), self._floor) if held is None else held.resource_version
        early = obj.uid in self._early
        self._early.discard(obj.uid)
        if obj.resource_version <= known:
            # What was put in by its maker is news all the same when it is heard of.
            return {key} if early and held and (key := self._index(held)) is not None else set()
        self._deleted.pop(obj.uid, None)
        return self._put(obj, held)

    def made(self, obj: T) -> None:
        """This process has made the object: it is there, even where all that is told of it will be lost."""
        seen = self._seen
        if obj.uid not in self._objects and self.apply(obj):
            self._early.add(obj.uid)
        # Not heard of: what was written before it may still be on its way.
        self._seen = seen

    def found(self, obj: T) -> set[K]:
        """The object was read by itself: it is there, even where all that was told of it was lost. Returns what `apply` does."""
        if obj.uid in self._objects or obj.uid in self._deleted:
            return self.apply(obj)
        self._seen = max(self._seen, obj.resource_version)
        return self._put(obj, None)

    def remove(self, uid: str, version: int | None = None) -> set[K]:
        """An object is no more. `version` is that of the deletion; without it the deletion is newer than all heard so far."""
        held = self._objects.get(uid)
        if version is None:
            version = self._seen if held is None else max(self._seen, held.resource_version)
        self._seen = max(self._seen, version)
        if held is not None and held.resource_version > version:
            return set()
        self._deleted[uid] = max(version, self._deleted.get(uid, 0))
        return set() if held is None else self._drop(held)

    def observe(self, version: int) -> None:
        """A bookmark: everything up to this version has been heard."""
        self._seen = max(self._seen, version)
        if version > self._floor:
            self._floor = version
            if len(self._deleted) > REMEMBERED:
                self._deleted = {uid: at for uid, at in self._deleted.items() if at > version}

    def replace(self, objs: Iterable[T], version: int) -> set[K]:
        """A complete list, as of `version`. What it does not hold is gone, unless it is newer than the list.

        Returns the keys of all that changed, vanished objects included. Nothing else runs in between: it has no awaits.
        A list from before the floor, by a server that lags behind, has no news in it.
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
