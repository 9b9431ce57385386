"""The API server, without HTTP: requests that take their time, meet faults and change the cluster; watches that tell of it.

What it does is what the real one does where an operator can tell. When things go wrong stands in `network_faults.py`.
"""

import asyncio
import functools
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import format_datetime
from random import Random
from typing import Any

from typing_extensions import override

from tests.simulation.engine.network_faults import Fault, NetworkFaults
from tests.simulation.engine.streams import Stream
from tests.simulation.engine.virtual_time import Loop, Time
from tests.support.fake_cluster import Change, FakeCluster, Json, Place, RefusedError, label_selector
from trainyard.kube.clock import ServerClock
from trainyard.kube.errors import ApiError
from trainyard.kube.permissions import PermissionTracker

OPERATOR = "operator"
INVALID_IMAGE = "not an image"
"""What a container asks for whose template the server finds invalid."""

REFUSALS: Mapping[Fault, tuple[int, str, str]] = {
    Fault.CONFLICT: (409, "Conflict", "Operation cannot be fulfilled: the object has been modified"),
    Fault.TOO_MANY: (429, "TooManyRequests", "too many requests, please try again later"),
    Fault.INTERNAL: (500, "InternalError", "etcdserver: request timed out"),
    Fault.FORBIDDEN: (403, "Forbidden", 'User "operator" cannot do that to resource "things" in API group ""'),
}
DONE_ALL_THE_SAME = frozenset({Fault.ANSWER_LOST, Fault.TIMED_OUT_AFTER_SUCCESS, Fault.SLOW})
SILENT = frozenset({Fault.TIMED_OUT, Fault.TIMED_OUT_AFTER_SUCCESS})


class SharedCluster(FakeCluster):
    """One whose objects are not copied for each reader. No reader here changes what it receives."""

    @override
    def _out(self, obj: Json) -> Json:
        return obj


@dataclass(slots=True, eq=False)
class Call:
    """A request on its way; the opening of a watch is one too."""

    session: "Session"
    method: str
    path: str
    params: Mapping[str, str]
    body: Json
    answer: "asyncio.Future[Any]"
    patience: float
    """Seconds for which the client waits, and tells the server that it does: later nothing is done any more."""
    sent_at: float = 0.0
    done: bool = False
    """Whether the server has dealt with it."""
    date: str = ""
    """The header of that name in the answer."""

    @property
    def verb(self) -> str:
        return f"{self.method} {parse(self.path)[0][2]}"


class Server:
    """One API server with its cluster."""

    def __init__(self, time: Time, network_faults: NetworkFaults, random: Random) -> None:
        self.cluster: FakeCluster = SharedCluster()
        self.cluster.graceful = {"pods"}
        self.cluster.goes_at = self.stamp
        self.streams: list[Stream] = []
        self.actor = "nobody"
        """Who makes the change of the moment."""
        self.writer = ""
        """Which of the operator's processes it was."""
        self.on_repeat: Callable[[Call], None] = lambda _: None
        """Called when a process creates what exists already, and was reported to it as created."""
        self._time, self._network_faults, self._random = time, network_faults, random
        self._versions: list[tuple[float, int]] = []
        self._pages: dict[str, tuple[int, list[Json]]] = {}
        self._tokens = itertools.count(1)

    @contextmanager
    def acting(self, actor: str) -> Iterator[FakeCluster]:
        """The changes made in here are this one's."""
        before, self.actor = self.actor, actor
        try:
            yield self.cluster
        finally:
            self.actor = before

    def stamp(self, skew: float = 0.0) -> str:
        """The time as the API writes it."""
        return self._time.of_day(skew).strftime("%Y-%m-%dT%H:%M:%SZ")

    # Requests.

    def submit(self, call: Call) -> None:
        """A request leaves the client."""
        call.sent_at = self._time.now
        fault = self._network_faults.strikes(call.verb)
        there, back = (0.002 + 0.02 * self._random.random() for _ in range(2))
        if fault is Fault.SLOW:
            there += 5 + 15 * self._random.random()
        patience = call.patience if fault in SILENT else min(there + back, call.patience)
        if fault is None or fault in DONE_ALL_THE_SAME:
            self._time.after(there, lambda: self._arrive(call, back, lost=fault not in {None, Fault.SLOW}))
        if fault is None or (fault is Fault.SLOW and there < call.patience):
            return
        if fault in REFUSALS:
            error = ApiError(*REFUSALS[fault])
        else:
            timed_out = fault in SILENT or fault is Fault.SLOW
            error = ApiError(0, "Timeout" if timed_out else "Unreachable", f"{call.verb}: no answer")
        self._time.after(patience, lambda: self._refuse(call, error))

    def arrive_after_all(self, call: Call) -> None:
        """The client is dead, but its request was on its way."""
        self._arrive(call, 0.0, lost=True)

    def _arrive(self, call: Call, back: float, *, lost: bool) -> None:
        if call.done or self._time.now > call.sent_at + call.patience:
            return
        call.done = True
        call.date = format_datetime(self._time.of_day(), usegmt=True)
        try:
            self.writer = call.session.name
            with self.acting(OPERATOR):
                answer = self._serve(call)
        except RefusedError as refused:
            error = ApiError(refused.status, refused.reason, refused.message)
            if error.already_exists and self._made_it(call):
                self.on_repeat(call)
            if not lost:
                self._time.after(back, lambda: self._refuse(call, error))
        else:
            if not lost:
                self._time.after(back, lambda: self._answer(call, answer))

    def _answer(self, call: Call, answer: Json | Stream) -> None:
        if not call.answer.done():
            call.answer.set_result(answer)

    def _made_it(self, call: Call) -> bool:
        """Whether the very object that is in its way was reported to this process as created, and then could be seen."""
        place, namespace, _, _ = parse(call.path)
        held = self.cluster.get(place, namespace, call.body["metadata"]["name"])
        owned = held["metadata"].get("ownerReferences") == call.body["metadata"].get("ownerReferences")
        return owned and held["metadata"]["uid"] in call.session.made and place[2] not in self._network_faults.lossy

    @staticmethod
    def _refuse(call: Call, error: ApiError) -> None:
        call.done = True
        if not call.answer.done():
            call.answer.set_exception(error)

    def _serve(self, call: Call) -> Json | Stream:
        place, namespace, name, subresource = parse(call.path)
        match call.method, name:
            case "WATCH", "":
                return self._open(call, place)
            case "GET", "":
                return self._list(call, place)
            case "GET", _:
                return self.cluster.get(place, namespace, name)
            case "POST", "":
                if place[2] == "pods":
                    self._admit(call.body)
                # As the real one does it: whatever status a client sends with a new object is dropped.
                status = {"phase": "Pending"} if place[2] == "pods" else {}
                return self.cluster.create(place, namespace, {**call.body, "status": status})
            case "PUT", _:
                return self.cluster.replace(place, namespace, name, call.body, subresource)
            case "PATCH", _:
                return self.cluster.merge(place, namespace, name, call.body, subresource)
            case "DELETE", _:
                uid, grace = call.body.get("preconditions", {}).get("uid"), call.body.get("gracePeriodSeconds")
                return self.delete(place, namespace, name, uid, grace) or {}
            case _:
                raise RefusedError(405, "MethodNotAllowed", f"{call.verb} is not served")

    def delete(
        self, place: Place, namespace: str, name: str, uid: str | None = None, grace: int | None = None
    ) -> Json | None:
        """Delete an object, with grace where there is a process to stop."""
        held = self.cluster.get(place, namespace, name)
        runs_nowhere = "nodeName" not in held.get("spec", {}) or held["status"]["phase"] in {"Succeeded", "Failed"}
        return self.cluster.delete(place, namespace, name, uid, 0 if runs_nowhere else grace)

    def _admit(self, pod: Json) -> None:
        quota = self._network_faults.quota
        if any(container["image"] == INVALID_IMAGE for container in pod["spec"]["containers"]):
            raise RefusedError(422, "Invalid", "spec.containers[0].image: Invalid value")
        if self._network_faults.webhook_denies:
            raise RefusedError(400, "BadRequest", 'admission webhook "policy.example.com" denied the request: no')
        if quota is not None and len(self.cluster.held(("", "v1", "pods"))) >= quota:
            raise RefusedError(403, "Forbidden", "pods is forbidden: exceeded quota: small")

    def _list(self, call: Call, place: Place) -> Json:
        if token := call.params.get("continue"):
            version, items = self._pages.pop(token, (0, []))
            if version < self.cluster.compacted or not version:
                raise RefusedError(410, "Expired", "The provided continue parameter is too old")
        else:
            version = self._version_for(call, place)
            selects = label_selector(call.params.get("labelSelector", ""))
            items = [item for item in self.cluster.as_of(place, version) if selects(item)]
        limit = int(call.params.get("limit", 0)) or len(items)
        metadata = {"resourceVersion": str(version)}
        if items[limit:]:
            metadata["continue"] = f"page-{next(self._tokens)}"
            self._pages[metadata["continue"]] = version, items[limit:]
        return {"metadata": metadata, "items": items[:limit]}

    def _version_for(self, call: Call, place: Place) -> int:
        """The version a list is of. The first list of a process is of the newest: the API promises it, and all rests on it."""
        late = self._network_faults.stale.get(place[2], 0.0)
        if not late or place[2] not in call.session.listed:
            return self.cluster.version
        then = self._time.now - late
        known = (version for at, version in reversed(self._versions) if at <= then)
        return max(next(known, 0), self.cluster.compacted)

    # Watches.

    def _open(self, call: Call, place: Place) -> Stream:
        """A watch from a version on; the first word of one that comes too late is 410."""
        params = call.params
        bookmarks = params.get("allowWatchBookmarks") == "true"
        selector = params.get("labelSelector", "")
        stream = Stream(
            self._time,
            self._network_faults,
            call.session.loop,
            place,
            selector,
            bookmarks=bookmarks,
            idle=call.patience,
        )
        try:
            past = self.cluster.changes(place, int(params["resourceVersion"]))
        except RefusedError as refused:
            stream.error({"code": refused.status, "reason": refused.reason, "message": refused.message})
            return stream
        for change in past:
            stream.publish(change, self._newest)
        self.streams = [other for other in self.streams if not other.over]
        self.streams.append(stream)
        self._time.after(float(params["timeoutSeconds"]), lambda: stream.finish(None))
        return stream

    def _newest(self) -> int:
        return self.cluster.version

    def on_change(self, change: Change) -> None:
        """Something was written: watches tell of it."""
        self._versions.append((self._time.now, change.at))
        for stream in self.streams:
            stream.publish(change, self._newest)


@dataclass(slots=True, eq=False)
class Session:
    """A client's connection, in the shape of `trainyard.kube.session.Session`. A dead client's is never answered."""

    server: Server
    loop: Loop
    name: str
    """Of the process."""
    clock: ServerClock
    """What it knows of the server's."""
    listed: set[str] = field(default_factory=set)
    """Of which plurals this client has had a list."""
    permissions: PermissionTracker = field(default_factory=PermissionTracker)
    permit: Callable[[], float] | None = None
    """Asked before each write for the seconds within which it has to be over."""
    on_request: None = None
    namespace: str | None = None
    writes_in_flight: int = 0
    """Writes that were sent and not answered."""
    made: set[str] = field(default_factory=set)
    """UIDs of the objects that were reported to it as created."""
    _calls: list[Call] = field(default_factory=list)

    @property
    def endpoint(self) -> "Session":
        """What kopf's stand-in gets: a connection of its own, to which no promise of a new list is kept."""
        return Session(self.server, self.loop, self.name, self.clock, listed={"trainingjobs"})

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout: float = 30.0,  # noqa: ASYNC109 - the shape of the real one
        accept: str = "",
        **_: Any,
    ) -> Json:
        """One request and its answer."""
        patience = timeout if self.permit is None or method == "GET" else min(timeout, self.permit())
        self.writes_in_flight += method != "GET"
        try:
            answer: Json = await self._call(method, path, params, body, patience)
        finally:
            self.writes_in_flight -= method != "GET"
        if method == "POST":
            self.made.add(answer["metadata"]["uid"])
        if "items" in answer:
            self.listed.add(path.rsplit("/", 1)[-1])
        return (
            {"metadata": answer["metadata"]} if "PartialObjectMetadata" in accept and "metadata" in answer else answer
        )

    async def stream(
        self, path: str, params: Mapping[str, str] | None = None, *, idle_timeout: float
    ) -> AsyncGenerator[Json, None]:
        """The events of a watch."""
        stream: Stream = await self._call("WATCH", path, params, None, idle_timeout)
        try:
            while (event := await stream.receive()) is not None:
                yield event
        finally:
            stream.finish(None)

    async def close(self) -> None:
        """Nothing is held open."""

    def abandon(self, arrives: Callable[[], bool]) -> None:
        """The client is dead. Of its requests on their way some arrive all the same, and no client receives the answer."""
        for call in self._calls:
            if not call.done and arrives():
                self.server.arrive_after_all(call)
            call.done = True

    async def _call(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        patience: float,
    ) -> Any:
        if self.loop.dead:
            raise asyncio.CancelledError
        call = Call(self, method, path, {**(params or {})}, {**(body or {})}, self.loop.create_future(), patience)
        self._calls = [other for other in self._calls if not other.done]
        self._calls.append(call)
        asked = self.clock.steady()
        self.server.submit(call)
        answer = await call.answer
        self.clock.observe(call.date, asked)
        return answer


@functools.lru_cache(maxsize=4096)
def parse(path: str) -> tuple[Place, str, str, str]:
    """Collection, namespace, name and subresource that a path means."""
    root, *parts = path.strip("/").split("/")
    group = parts.pop(0) if root == "apis" else ""
    version = parts.pop(0)
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    plural, name, subresource, *_ = [*parts, "", ""]
    return (group, version, plural), namespace, name, subresource
