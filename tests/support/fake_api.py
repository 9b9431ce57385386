"""A fake Kubernetes API server on loopback: HTTP in front of a `FakeCluster`, with faults on demand.

```python
async with FakeApi() as api:
    session = api.session()                                # a real Session that talks to it
    api.cluster.create(PODS, "ns", {...})                  # play users and kubelets
    api.fault(method="POST", status=429, retry_after=0)    # go wrong, once
    await api.watching()                                   # until a watch is open
    api.cut()                                              # break all watches off
    with api.no_calls(): ...                               # not one request in here
    assert [call.verb for call in api.writes] == [...]
```
"""

import asyncio
import base64
import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tests.support.fake_cluster import Change, FakeCluster, Json, Place, RefusedError, label_selector
from tests.support.faults import Fault, FaultScript
from tests.support.waiting import until
from trainyard.kube.resource import EVENTS, PODS, SERVICES, Resource
from trainyard.kube.session import Endpoint, Session

_PAGE_TOKENS = itertools.count(1)


@dataclass(slots=True)
class Call:
    """One request, as it arrived, and the status it was answered with (0: not yet, or never)."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Json
    status: int = 0

    @property
    def watch(self) -> bool:
        return self.query.get("watch") in ("true", "1")

    @property
    def verb(self) -> str:
        """Method and last part of the path: `POST pods`, `PUT status`."""
        return f"{self.method} {self.path.rsplit('/', 1)[-1]}"


@dataclass(slots=True, eq=False)
class Watch:
    """An open watch, with the events that are not sent yet."""

    place: Place
    namespace: str | None
    selector: str
    response: web.StreamResponse
    request: web.Request
    lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    silent: bool = False

    def send_change(self, change: Change) -> None:
        subject = change.new or change.old
        assert subject is not None
        if change.place != self.place or self.namespace not in (None, subject["metadata"]["namespace"]):
            return
        event = change.event(label_selector(self.selector))
        if event is not None:
            self.say(event)

    def say(self, event: Json | bytes) -> None:
        if not self.silent:
            self.lines.put_nowait(event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n")


class FakeApi:
    """The server. `cluster` holds its objects, `calls` the requests that it got."""

    def __init__(self, resources: Sequence[Resource] = (PODS, SERVICES, EVENTS)) -> None:
        """`resources` are only for discovery; any path is served."""
        self.cluster = FakeCluster()
        self.calls: list[Call] = []
        self.watches: list[Watch] = []
        self.url = ""
        self.served: dict[str, Json] = {}
        """Answers to paths that are no objects, for example the cluster's token keys."""
        self._resources = resources
        self._faults = FaultScript()
        self._pages: dict[str, tuple[int, list[Json]]] = {}
        self._sessions: list[Session] = []
        self._runner: web.AppRunner | None = None
        self.cluster.listeners.append(self._send_change)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for session in self._sessions:
            await session.close()
        self.end()
        assert self._runner is not None
        await self._runner.cleanup()

    def session(self, **options: Any) -> Session:
        """A session with this server, closed with it."""
        session = Session(Endpoint(server=self.url), **options)
        self._sessions.append(session)
        return session

    # Faults and watches.

    def fault(self, **fields: Any) -> Fault:
        """Let the next matching requests fail; see `Fault` for the fields."""
        fault = Fault(**fields)
        self._faults.waiting.append(fault)
        return fault

    async def watching(self, count: int = 1) -> None:
        """Wait until so many watches are open."""
        await until(lambda: len(self.watches) >= count)

    def say(self, event: Json | bytes) -> None:
        """Send an event, or a raw line, to all open watches."""
        for watch in self.watches:
            watch.say(event)

    def bookmark(self) -> None:
        """Send a bookmark to all open watches."""
        self.say({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.cluster.version)}}})

    def mute(self) -> None:
        """Silence all open watches without closing them."""
        for watch in self.watches:
            watch.silent = True

    def cut(self) -> None:
        """Break the connections of all open watches."""
        for watch in [*self.watches]:
            self._abort(watch.request)
            watch.lines.put_nowait(None)
        self.watches.clear()

    def end(self) -> None:
        """End all open watches normally."""
        for watch in self.watches:
            watch.lines.put_nowait(None)
        self.watches.clear()

    # What was asked.

    @property
    def writes(self) -> list[Call]:
        """All requests that are not GET."""
        return [call for call in self.calls if call.method != "GET"]

    @contextlib.contextmanager
    def no_calls(self, *, writes_only: bool = False) -> Iterator[None]:
        """Assert that no request (or no write) is made inside."""
        before = len(self.calls)
        yield
        made = [call.verb for call in self.calls[before:] if not writes_only or call.method != "GET"]
        assert not made, f"requests were made: {made}"

    # The server's side.

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.text()
        call = Call(
            request.method, request.path, dict(request.query), dict(request.headers), json.loads(raw) if raw else {}
        )
        self.calls.append(call)
        fault = self._faults.next(call.method, call.path, watch=call.watch) or Fault()
        try:
            response = await self._answer(request, call, fault)
        except RefusedError as refused:
            response = _refusal(refused.status, refused.reason, refused.message)
        if fault.lose_answer:
            self._abort(request)
        call.status = response.status
        return response

    async def _answer(self, request: web.Request, call: Call, fault: Fault) -> web.StreamResponse:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.drop:
            self._abort(request)
            return web.Response(status=500)
        if fault.status is not None:
            return _refusal(fault.status, fault.reason, fault.message, fault.causes, fault.retry_after)
        if fault.text is not None:
            return web.Response(text=fault.text, content_type="application/json")
        place, namespace, name, subresource = _parse(call.path)
        if place is None:
            return self._document(call) or web.json_response(_discovery(call.path, self._resources))
        if call.watch:
            return await self._watch(request, call, place, namespace, silent=fault.silent)
        if not name:
            if call.method == "GET":
                return web.json_response(self._list(place, namespace, call.query))
            made = self._of_collection(call, place, namespace or "")
            return web.json_response(made, status=201 if call.method == "POST" else 200)
        return web.json_response(self._one(call, place, namespace or "", name, subresource))

    def _document(self, call: Call) -> web.Response | None:
        """One of `served`, in the one form in which the server has it."""
        if call.path not in self.served:
            return None
        form = "application/jwk-set+json" if "jwks" in call.path else "application/json"
        if form not in call.headers["Accept"]:
            return _refusal(406, "NotAcceptable", f"Available representations: {form}")
        return web.json_response(self.served[call.path], content_type=form)

    def _one(self, call: Call, place: Place, namespace: str, name: str, subresource: str) -> Json:
        match call.method:
            case "GET":
                return self.cluster.get(place, namespace, name)
            case "PUT":
                return self.cluster.replace(place, namespace, name, call.body, subresource)
            case "PATCH":
                return self.cluster.merge(place, namespace, name, call.body, subresource)
            case "DELETE":
                uid = call.body.get("preconditions", {}).get("uid")
                held = self.cluster.delete(place, namespace, name, uid, call.body.get("gracePeriodSeconds"))
                return held or {"kind": "Status", "apiVersion": "v1", "status": "Success"}
            case _:
                raise RefusedError(405, "MethodNotAllowed", f"{call.method} is not served")

    def _of_collection(self, call: Call, place: Place, namespace: str) -> Json:
        if call.method == "DELETE":
            return self._delete_all(place, namespace, call.query)
        # As the server does it: whatever status a client sends with a new object is dropped.
        status = {"phase": "Pending"} if place[2] == "pods" else {}
        if call.query.get("dryRun") == "All":
            return call.body
        return self.cluster.create(place, namespace, {**call.body, "status": status})

    def _delete_all(self, place: Place, namespace: str, query: dict[str, str]) -> Json:
        for found in self.cluster.objects(place, namespace, query.get("labelSelector", "")):
            self.cluster.delete(place, namespace, found["metadata"]["name"])
        return {"kind": "List", "apiVersion": place[1], "metadata": {}, "items": []}

    def _list(self, place: Place, namespace: str | None, query: dict[str, str]) -> Json:
        if token := query.get("continue"):
            version, items = self._pages.pop(token, (0, []))
            if version < self.cluster.compacted or not version:
                raise RefusedError(410, "Expired", "The provided continue parameter is too old")
        else:
            version, items = (
                self.cluster.version,
                self.cluster.objects(place, namespace, query.get("labelSelector", "")),
            )
        limit = int(query.get("limit", 0)) or len(items)
        metadata = {"resourceVersion": str(version)}
        if items[limit:]:
            metadata["continue"] = base64.b64encode(str(next(_PAGE_TOKENS)).encode()).decode()
            self._pages[metadata["continue"]] = version, items[limit:]
        return {"kind": "List", "apiVersion": place[1], "metadata": metadata, "items": items[:limit]}

    async def _watch(
        self, request: web.Request, call: Call, place: Place, namespace: str | None, *, silent: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        call.status = 200
        watch = Watch(place, namespace, call.query.get("labelSelector", ""), response, request, silent=silent)
        try:
            for change in self.cluster.changes(place, int(call.query.get("resourceVersion") or 0)):
                watch.send_change(change)
        except RefusedError as refused:
            status = {"kind": "Status", "code": refused.status, "reason": refused.reason, "message": refused.message}
            watch.say({"type": "ERROR", "object": status})
            watch.lines.put_nowait(None)
        else:
            self.watches.append(watch)
        try:
            while (line := await watch.lines.get()) is not None:
                await response.write(line)
        except ConnectionResetError:
            pass  # the client has gone away
        finally:
            if watch in self.watches:
                self.watches.remove(watch)
        return response

    def _send_change(self, change: Change) -> None:
        for watch in self.watches:
            watch.send_change(change)

    @staticmethod
    def _abort(request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()


def _parse(path: str) -> tuple[Place | None, str | None, str, str]:
    """Collection, namespace, name and subresource that a path means; no collection for discovery."""
    root, *parts = path.strip("/").split("/")
    group = parts.pop(0) if root == "apis" and parts else ""
    version = parts.pop(0) if parts else ""
    namespace = None
    if len(parts) > 2 and parts[0] == "namespaces":
        namespace = parts[1]
        parts = parts[2:]
    if not parts or root not in ("api", "apis"):
        return None, None, "", ""
    plural, name, subresource, *_ = [*parts, "", ""]
    return (group, version, plural), namespace, name, subresource


def _discovery(path: str, resources: Sequence[Resource]) -> Json:
    groups = sorted({(r.group, r.version) for r in resources if r.group})
    match path.strip("/").split("/"):
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            return {"kind": "APIGroupList", "groups": [_group(*group) for group in groups]}
        case ["apis", name]:
            return _group(name, next(version for group, version in groups if group == name))
        case ["api", *_] | ["apis", *_]:
            served = [r for r in resources if r.path().rsplit("/", 1)[0] == path.rstrip("/")]
            return {"kind": "APIResourceList", "resources": [_served(resource) for resource in served]}
        case _:
            return {"major": "1", "minor": "36"}


def _served(resource: Resource) -> Json:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    names = {"name": resource.plural, "singularName": resource.kind.lower(), "kind": resource.kind}
    return {**names, "namespaced": True, "verbs": verbs}


def _group(name: str, version: str) -> Json:
    entry = {"groupVersion": f"{name}/{version}", "version": version}
    return {"kind": "APIGroup", "name": name, "versions": [entry], "preferredVersion": entry}


def _refusal(
    status: int, reason: str, message: str, causes: Sequence[str] = (), retry_after: float | None = None
) -> web.Response:
    body: Json = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reason}
    body |= {"message": message, "details": {"causes": [{"reason": cause} for cause in causes]}}
    headers = {} if retry_after is None else {"Retry-After": f"{retry_after:g}"}
    return web.json_response(body, status=status, headers=headers)
