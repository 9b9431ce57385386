"""Own writes that the caches have not shown yet: no decision is made on a state older than the last one. Pure.

The idea of KEP-5647: compare versions, not counts, so that a lost event can never block or double a decision.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


@dataclass(slots=True)
class _Pending:
    versions: dict[str, int] = field(default_factory=dict)
    deletions: set[tuple[str, str]] = field(default_factory=set)


class WriteTracker(Generic[Owner]):
    """The last writes of each owner. One owner's writes never hold up another."""

    def __init__(self) -> None:
        self._pending: dict[Owner, _Pending] = {}

    def wrote(self, owner: Owner, resource: str, version: int) -> None:
        """An object was created or changed; `version` is the resourceVersion in the answer."""
        versions = self._pending.setdefault(owner, _Pending()).versions
        versions[resource] = max(version, versions.get(resource, 0))

    def deleted(self, owner: Owner, resource: str, uid: str) -> None:
        """An object was deleted: the answer need not have a version, so its UID is remembered."""
        self._pending.setdefault(owner, _Pending()).deletions.add((resource, uid))

    def ready(self, owner: Owner, seen: Mapping[str, int], deleting: Callable[[str, str], bool]) -> bool:
        """Whether the caches show all that was written for this owner.

        `seen` is the newest version each resource's cache has heard of (a resource that is not in it has no cache and is not
        waited for); `deleting(resource, uid)` says that the cache holds the object as being deleted, or not at all.
        """
        pending = self._pending.get(owner)
        if pending is None:
            return True
        pending.versions = {
            name: version for name, version in pending.versions.items() if seen.get(name, version) < version
        }
        pending.deletions = {(name, uid) for name, uid in pending.deletions if not deleting(name, uid)}
        if pending.versions or pending.deletions:
            return False
        del self._pending[owner]
        return True

    def forget(self, owner: Owner) -> None:
        """The owner is gone."""
        self._pending.pop(owner, None)
