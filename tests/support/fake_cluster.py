"""The state of a fake API server: objects, versions and their history, without HTTP. Tests use it to act as users and
kubelets.

Follows the real server where the operator can see it. There is one counter of versions for all kinds. An update that
changes nothing makes no version. A write of the object leaves its status alone, and the other way round. A deletion
has a version of its own.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from trainyard.kube.resource import Resource

Json = dict[str, Any]
Place = tuple[str, str, str]
"""Where a collection lives: group, version, plural. Namespace and name come after it."""


class RefusedError(Exception):
    """What the server would answer with."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass(frozen=True, slots=True)
class Change:
    """One step of one object. `old` is None for a creation, `new` for a deletion; `at` is the version of the step."""

    at: int
    place: Place
    old: Json | None
    new: Json | None

    def event(self, selects: Callable[[Json], bool]) -> Json | None:
        """As a watch with this selector tells it: an object that ceases to match is deleted for it."""
        before = self.old is not None and selects(self.old)
        after = self.new is not None and selects(self.new)
        if after:
            return {"type": "MODIFIED" if before else "ADDED", "object": self.new}
        if before:
            last = copied(self.old)
            assert last is not None
            last["metadata"]["resourceVersion"] = str(self.at)
            return {"type": "DELETED", "object": last}
        return None


def place_of(resource: Resource) -> Place:
    return resource.group, resource.version, resource.plural


class FakeCluster:
    """The state. All methods return copies: what a test does to them stays with the test."""

    def __init__(self) -> None:
        self.version = 100
        self.compacted = 0
        """Versions up to this one have no history: a watch from before it gets 410."""
        self.graceful: set[str] = set()
        """Plurals (say "pods") whose deletion only sets a deletionTimestamp, until `finish_deletion`."""
        self.goes_at: Callable[[int], str] = lambda _: "2026-01-01T00:10:00Z"
        """The deletionTimestamp of an object that has so many seconds to go."""
        self.listeners: list[Callable[[Change], None]] = []
        self._objects: dict[Place, dict[tuple[str, str], Json]] = {}
        self._history: list[Change] = []
        self._uids = itertools.count(1)

    # What the operator does, through the API.

    def get(self, place: Place | Resource, namespace: str, name: str) -> Json:
        return self._out(self._find(_place(place), namespace, name))

    def objects(self, place: Place | Resource, namespace: str | None = None, selector: str = "") -> list[Json]:
        selects = label_selector(selector)
        held = self._objects.get(_place(place), {})
        return [
            self._out(obj) for (within, _), obj in sorted(held.items()) if namespace in (None, within) and selects(obj)
        ]

    def create(self, place: Place | Resource, namespace: str, manifest: Json) -> Json:
        """Create an object, with its status where it has one."""
        place = _place(place)
        obj = copied(manifest)
        metadata = obj.setdefault("metadata", {})
        name = metadata.get("name")
        if not name:
            raise RefusedError(422, "Invalid", "metadata.name: Required value: name or generateName is required")
        if (namespace, name) in self._objects.get(place, {}):
            raise RefusedError(409, "AlreadyExists", f'{place[2]} "{name}" already exists')
        metadata.update(namespace=namespace, uid=f"uid-{next(self._uids)}", generation=1)
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        return self._commit(place, None, obj)

    def replace(self, place: Place | Resource, namespace: str, name: str, obj: Json, subresource: str = "") -> Json:
        """PUT: the status alone for the subresource `status`, all but the status without one."""
        place = _place(place)
        held = self._find(place, namespace, name)
        metadata = obj.get("metadata", {})
        if metadata.get("uid", held["metadata"]["uid"]) != held["metadata"]["uid"]:
            raise RefusedError(
                409, "Conflict", "Precondition failed: UID in precondition differs from UID in object meta"
            )
        if metadata.get("resourceVersion", held["metadata"]["resourceVersion"]) != held["metadata"]["resourceVersion"]:
            raise RefusedError(
                409, "Conflict", f'Operation cannot be fulfilled on {place[2]} "{name}": the object has been modified'
            )
        return self._write(place, held, obj, subresource)

    def merge(self, place: Place | Resource, namespace: str, name: str, patch: Json, subresource: str = "") -> Json:
        """PATCH, as RFC 7386 has it."""
        place = _place(place)
        held = self._find(place, namespace, name)
        return self._write(place, held, merged(held, patch), subresource)

    def delete(
        self, place: Place | Resource, namespace: str, name: str, uid: str | None = None, grace: int | None = None
    ) -> Json | None:
        """Delete an object: at once (None), or, for graceful kinds, when `finish_deletion` is called (the object)."""
        place = _place(place)
        held = self._find(place, namespace, name)
        known = held["metadata"]["uid"]
        if uid not in (None, known):
            raise RefusedError(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {place[2]} "{name}": the UID in the precondition ({uid}) does not match '
                f"the UID in record ({known}). The object might have been deleted and then recreated",
            )
        if place[2] in self.graceful and grace != 0:
            if "deletionTimestamp" in held["metadata"]:
                return self._out(held)
            seconds = 30 if grace is None else grace
            marked = {**held, "metadata": {**held["metadata"]}}
            marked["metadata"] |= {
                "deletionTimestamp": self.goes_at(seconds),
                "deletionGracePeriodSeconds": seconds,
            }
            return self._commit(place, held, marked)
        self._commit(place, held, None)
        return None

    # What happens around it.

    def set_status(self, place: Place | Resource, namespace: str, name: str, **status: Any) -> Json:
        """A kubelet or user sets fields of a status, whatever the version."""
        return self.merge(place, namespace, name, {"status": status}, "status")

    def finish_deletion(self, place: Place | Resource, namespace: str, name: str) -> None:
        """The kubelet has stopped the pod: it goes."""
        self._commit(_place(place), self._find(_place(place), namespace, name), None)

    def collect_garbage(self) -> int:
        """Delete what has owners of which none is left, until there is no more. How many there were."""
        count = 0
        while True:
            alive = {obj["metadata"]["uid"] for held in self._objects.values() for obj in held.values()}
            orphans = [
                (place, obj)
                for place, held in self._objects.items()
                for obj in held.values()
                if (owners := obj["metadata"].get("ownerReferences")) and not alive & {owner["uid"] for owner in owners}
            ]
            if not orphans:
                return count
            for place, obj in orphans:
                self._commit(place, obj, None)
            count += len(orphans)

    def compact(self) -> None:
        """Forget the history: watches and lists that start in the past get 410."""
        self._history.clear()
        self.compacted = self.version

    def changes(self, place: Place | Resource, since: int) -> list[Change]:
        """The history after a version. Refuses one that is compacted."""
        if since < self.compacted:
            raise RefusedError(410, "Expired", f"too old resource version: {since} ({self.compacted})")
        return [change for change in self._history if change.place == _place(place) and change.at > since]

    def held(self, place: Place | Resource) -> list[Json]:
        """The objects themselves and no copies, for those who only look and look often."""
        return [*self._objects.get(_place(place), {}).values()]

    def as_of(self, place: Place | Resource, version: int) -> list[Json]:
        """What the objects were at an earlier version that is not compacted. No copies either."""
        there = dict(self._objects.get(_place(place), {}))
        for change in reversed(self.changes(place, version)):
            subject = change.old or change.new
            assert subject is not None
            key = subject["metadata"]["namespace"], subject["metadata"]["name"]
            if change.old is None:
                there.pop(key, None)
            else:
                there[key] = change.old
        return [there[key] for key in sorted(there)]

    def _find(self, place: Place, namespace: str, name: str) -> Json:
        try:
            return self._objects[place][namespace, name]
        except KeyError:
            raise RefusedError(404, "NotFound", f'{place[2]} "{name}" not found') from None

    def _write(self, place: Place, held: Json, wanted: Json, subresource: str) -> Json:
        # What is held is never changed, only replaced: the parts that stay the same are shared.
        if subresource == "status":
            new = {**held, "metadata": {**held["metadata"]}, "status": copied(wanted.get("status", {}))}
        else:
            kept = {key: held[key] for key in ("status",) if key in held}
            identity = {
                key: held["metadata"][key] for key in ("name", "namespace", "uid", "creationTimestamp", "generation")
            }
            new = {**copied(wanted), **kept}
            new["metadata"] = {**new.get("metadata", {}), **identity}
            new["metadata"]["resourceVersion"] = held["metadata"]["resourceVersion"]
            if new.get("spec") != held.get("spec"):
                new["metadata"]["generation"] += 1
        return self._out(held) if new == held else self._commit(place, held, new)

    def _commit(self, place: Place, old: Json | None, new: Json | None) -> Json:
        self.version += 1
        subject = new if new is not None else old
        assert subject is not None
        metadata = subject["metadata"]
        held = self._objects.setdefault(place, {})
        if new is None:
            del held[metadata["namespace"], metadata["name"]]
        else:
            metadata["resourceVersion"] = str(self.version)
            held[metadata["namespace"], metadata["name"]] = new
        change = Change(self.version, place, old, new)
        self._history.append(change)
        for listener in self.listeners:
            listener(change)
        return self._out(subject)

    def _out(self, obj: Json) -> Json:
        """What callers are given of an object that is held."""
        given: Json = copied(obj)
        return given


def _place(place: Place | Resource) -> Place:
    return place_of(place) if isinstance(place, Resource) else place


def label_selector(text: str) -> Callable[[Json], bool]:
    """`a=b,c!=d,e,!f` as a test of an object."""
    terms = [*_terms(text)]

    def selects(obj: Json) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(_matches(labels, term) for term in terms)

    return selects


def _terms(text: str) -> Iterable[str]:
    return (term.strip() for term in text.split(",") if term.strip())


def _matches(labels: Json, term: str) -> bool:
    if "!=" in term:
        key, value = term.split("!=")
        return labels.get(key) != value
    if "=" in term:
        key, value = term.replace("==", "=").split("=")
        return bool(labels.get(key) == value)
    return term.removeprefix("!") in labels if not term.startswith("!") else term[1:] not in labels


def copied(value: Any) -> Any:
    """A copy of JSON all the way down; many times as fast as `copy.deepcopy`, which looks for what JSON has not."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def merged(held: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copied(patch)
    result = dict(held) if isinstance(held, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
