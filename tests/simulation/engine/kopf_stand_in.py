"""kopf's watch on TrainingJobs, as far as the operator can tell it from kopf itself: a list, a watch, and their gaps.

kopf lists again only where its version has expired, and never notices a deletion that fell into a gap. Within a tenth of
a second, it delivers only the last event of an object.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.engine.server import Session
from tests.support.fake_cluster import Json
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.kube.errors import ApiError

BATCH_SECONDS = 0.1
PAUSE_SECONDS = 1.0
PARTING_SECONDS = 0.1
"""From the stop flag to the cleanup handler."""
IDLE_SECONDS = 90.0
WATCH_SECONDS = 1200

OnChange = Callable[[str | None, Mapping[str, Any]], None]


@dataclass(slots=True)
class Ear:
    """The watch, and what it has heard but not told yet."""

    session: Session
    on_change: OnChange
    _version: str | None = None
    _last: dict[str, tuple[str | None, Json]] = field(default_factory=dict)

    async def listen(self) -> None:
        """Listen for ever."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch(self._version)
            except ApiError as error:
                if error.gone:
                    self._version = None
                await asyncio.sleep(PAUSE_SECONDS)

    async def _list(self) -> None:
        answer = await self.session.request("GET", TRAINING_JOBS.path())
        for item in answer["items"]:
            self._take(None, item)
        self._version = answer["metadata"]["resourceVersion"]

    async def _watch(self, version: str | None) -> None:
        params = {"watch": "true", "resourceVersion": str(version), "timeoutSeconds": str(WATCH_SECONDS)}
        async with contextlib.aclosing(
            self.session.stream(TRAINING_JOBS.path(), params, idle_timeout=IDLE_SECONDS)
        ) as events:
            async for event in events:
                if event["type"] == "ERROR":
                    raise ApiError.from_status(0, event["object"])
                self._version = event["object"]["metadata"]["resourceVersion"]
                self._take(event["type"], event["object"])

    def _take(self, kind: str | None, item: Json) -> None:
        uid = item["metadata"]["uid"]
        if uid not in self._last:
            asyncio.get_running_loop().call_later(BATCH_SECONDS, lambda: self.on_change(*self._last.pop(uid)))
        self._last[uid] = kind, item


async def run(
    endpoint: Session, on_change: OnChange, *, stop: asyncio.Event, leaving: asyncio.Event, **_: object
) -> None:
    """In the shape of `trainyard.controller.kopf_adapter.shell.run`."""
    listening = asyncio.create_task(Ear(endpoint, on_change).listen())
    try:
        await stop.wait()
        await asyncio.sleep(PARTING_SECONDS)
        leaving.set()
    finally:
        listening.cancel()
