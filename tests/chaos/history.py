"""The true history, step by step: read from etcd, past the API server and the proxies before it.

No step is missed, whatever becomes of the API server, and all kinds stand in one order: that of the store. Judges
nothing.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self

import aiohttp

Json = dict[str, Any]

LAB: Final = "lab"
"""The one namespace in which everything is played."""
PLACES: Final = {
    f"/registry/trainyard.dev/trainingjobs/{LAB}/": "job",
    f"/registry/pods/{LAB}/": "pod",
    f"/registry/services/specs/{LAB}/": "service",
    f"/registry/events/{LAB}/": "event",
}


class StuckError(AssertionError):
    """Something did not come true in time."""


@dataclass(frozen=True, slots=True)
class Step:
    """One object as of one version; `new` is None where it is gone, `old` where it is new."""

    version: int
    kind: str
    name: str
    old: Json | None
    new: Json | None

    @property
    def obj(self) -> Json:
        """The object, or the last that was seen of it."""
        found = self.new if self.new is not None else self.old
        assert found is not None
        return found


@dataclass(slots=True)
class History:
    """All steps since it was opened, and what there is now."""

    storage: str
    steps: list[Step] = field(default_factory=list)
    now: dict[str, dict[str, Json]] = field(default_factory=lambda: {kind: {} for kind in PLACES.values()})
    listeners: list[Callable[[Step], None]] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _open: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read(), name="history")
        async with asyncio.timeout(30):
            await self._open.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def jobs(self) -> dict[str, Json]:
        return self.now["job"]

    def pods(self, job_uid: str | None = None) -> list[Json]:
        """The pods there are: all, or those of a job."""
        return [p for p in self.now["pod"].values() if job_uid in {None, owner(p)}]

    async def until(self, holds: Callable[[], object], what: str, within: float) -> None:
        """Wait until it holds; it is asked after each step."""
        try:
            async with asyncio.timeout(within):
                while not holds():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise StuckError(f"waited {within:.0f} s for {what}") from None

    async def _read(self) -> None:
        key, end = (base64.b64encode(text.encode()).decode() for text in ("/registry/", "/registry0"))
        watch = {"create_request": {"key": key, "range_end": end}}
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.post(f"{self.storage}/v3/watch", json=watch) as answer,
        ):
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._record(json.loads(line)["result"])

    def _record(self, result: Json) -> None:
        if result.get("created"):
            self._open.set()
        for event in result.get("events", ()):
            place = base64.b64decode(event["kv"]["key"]).decode()
            prefix, _, name = place.rpartition("/")
            if kind := PLACES.get(f"{prefix}/"):
                text = base64.b64decode(event["kv"].get("value", ""))
                self._note(int(event["kv"]["mod_revision"]), kind, name, json.loads(text) if text else None)

    def _note(self, version: int, kind: str, name: str, new: Json | None) -> None:
        step = Step(version, kind, name, self.now[kind].pop(name, None), new)
        if new is not None:
            self.now[kind][name] = new
        self.steps.append(step)
        for listener in self.listeners:
            listener(step)
        self._news.set()


def owner(obj: Json) -> str | None:
    """The UID of the object that controls this one."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((str(o["uid"]) for o in owners if o.get("controller")), None)


def live(pod: Json) -> bool:
    """Whether anything in it may still run."""
    return pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}
