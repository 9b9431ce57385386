"""A reflector of pods that runs against the fake API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from trainyard.kube.reflector import Reflector
from trainyard.kube.resource import PODS
from trainyard.kube.store import Store

LIST, WATCH = {"method": "GET", "watch": False}, {"method": "GET", "watch": True}


@dataclass(frozen=True, slots=True)
class Pod:
    uid: str
    resource_version: int
    name: str
    job: str | None
    phase: str

    @classmethod
    def read(cls, raw: dict[str, Any]) -> "Pod":
        metadata = raw["metadata"]
        phase = raw.get("status", {}).get("phase", "Pending")
        job = metadata.get("labels", {}).get("job")
        return cls(metadata["uid"], int(metadata["resourceVersion"]), metadata["name"], job, phase)


def pod(name: str, job: str = "a", **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"job": job}}, **fields}


@dataclass(slots=True)
class Scene:
    """A running reflector and what it has reported."""

    api: FakeApi
    reflector: Reflector[Pod, str]
    changes: list[str]
    pauses: list[int]

    @property
    def store(self) -> Store[Pod, str]:
        return self.reflector.store

    def names(self, job: str = "a") -> set[str]:
        return {pod.name for pod in self.store.of(job)}

    async def shows(self, *names: str, job: str = "a") -> None:
        await until(lambda: self.names(job) == set(names))

    def count(self, *, watch: bool) -> int:
        return sum(call.watch is watch for call in self.api.calls)


@contextlib.asynccontextmanager
async def watching(api: FakeApi, **options: Any) -> AsyncIterator[Scene]:
    changes: list[str] = []
    pauses: list[int] = []

    def at_once(failures: int) -> float:
        pauses.append(failures)
        return 0.0

    store: Store[Pod, str] = Store(lambda pod: pod.job)
    settings: dict[str, Any] = {"project": Pod.read, "on_change": changes.append, "backoff": at_once, **options}
    reflector = Reflector(api.session(), PODS, store=store, **settings)
    task = asyncio.create_task(reflector.run())
    try:
        yield Scene(api, reflector, changes, pauses)
        assert not task.done(), "nothing may end the reflector"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
