"""Track own writes that the caches do not show yet, so that no decision rests on state older than the last write. Pure.

As in KEP-5647, versions are compared and not counts: a lost event can never block or double a decision.
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
    """The last writes of each owner. Writes of one owner never block another."""

    def __init__(self) -> None:
        self._pending: dict[Owner, _Pending] = {}

    def wrote(self, owner: Owner, resource: str, version: int) -> None:
        """Record a create or an update; `version` is the resourceVersion in the answer."""
        versions = self._pending.setdefault(owner, _Pending()).versions
        versions[resource] = max(version, versions.get(resource, 0))

    def deleted(self, owner: Owner, resource: str, uid: str) -> None:
        """Record a deletion by UID, since the answer need not have a version."""
        self._pending.setdefault(owner, _Pending()).deletions.add((resource, uid))

    def ready(self, owner: Owner, seen: Mapping[str, int], deleting: Callable[[str, str], bool]) -> bool:
        """Return whether the caches show all writes of this owner.

        `seen` maps each resource to the newest version in its cache. A resource that is missing there has no cache and
        is not waited for. `deleting(resource, uid)` returns whether the cache shows the object as being deleted, or not
        at all.
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
        """Forget an owner that is gone."""
        self._pending.pop(owner, None)
