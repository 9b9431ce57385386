"""Keep the cache of TrainingJobs current, from kopf's watch and from a periodic list of our own.

kopf does not compare lists: an object that is deleted while its watch is down would stay for ever. Our list finds it,
and every other missed change.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.controller.reconcile.resources import TRAINING_JOBS, JobRecord, job_record
from trainyard.domain.state.accelerators import ACCELERATORS, AcceleratorTable
from trainyard.kube.backoff import Backoff
from trainyard.kube.errors import ApiError
from trainyard.kube.listing import read_all
from trainyard.kube.permissions import Permission
from trainyard.kube.resource import namespace_label
from trainyard.kube.session import Session
from trainyard.kube.store import Store

_LOG = logging.getLogger(__name__)
PAGE_OBJECTS = 500
WATCH_FORBIDDEN_RELIST_SECONDS = 15.0
"""Seconds between two lists while the account may not watch: only a list finds changes then."""


@dataclass(slots=True)
class JobInformer:
    """Keeps `jobs` equal to the API server's jobs of one namespace (None: of all)."""

    session: Session
    namespace: str | None
    jobs: Store[JobRecord, str]
    on_change: Callable[[str], None]
    relist_seconds: float
    accelerators: AcceleratorTable = field(default_factory=lambda: ACCELERATORS)
    """How the processes of workers are counted."""
    clock: Callable[[], float] = time.monotonic
    backoff: Callable[[int], float] = field(default_factory=lambda: Backoff(cap=30.0))
    synced: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    missed: int = field(default=0, init=False)
    """Changes that a list found before the watch reported them."""
    _listed_at: float = field(init=False)
    _failures: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._listed_at = self.clock()

    def age(self) -> float:
        """Return the seconds since the jobs were last listed, or since this informer was created."""
        return self.clock() - self._listed_at

    def on_event(self, kind: str | None, raw: Mapping[str, Any]) -> None:
        """Apply an event of kopf's watch; `kind` is None for an object of its first list."""
        uid, version = raw["metadata"]["uid"], int(raw["metadata"]["resourceVersion"])
        if kind == "DELETED":
            self._notify(self.jobs.remove(uid, version))
        elif not self.jobs.knows(uid, version):
            self._notify(self.jobs.apply(job_record(raw, self.accelerators)))

    async def run(self) -> None:
        """List for ever."""
        while True:
            try:
                await self.relist()
                self._failures = 0
                await self._wait_until_due()
            except ApiError as error:
                self._failures += 1
                if self._failures == 1 and not error.permission_denied:
                    _LOG.warning(
                        f"retrying to list TrainingJobs in {namespace_label(self.namespace)}: {_describe(error)}"
                    )
                await asyncio.sleep(self.backoff(self._failures))

    async def relist(self) -> None:
        """List once, and compare the result with the cache."""
        items, version = await read_all(self.session, TRAINING_JOBS.path(self.namespace), {}, PAGE_OBJECTS)
        try:
            records = [job_record(raw, self.accelerators) for raw in items]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ApiError(0, "MalformedAnswer", f"an item of the list is not a TrainingJob: {error!r}") from error
        changed = self.jobs.replace(records, int(version))
        self._listed_at = self.clock()
        if self.synced.is_set():
            self.missed += len(changed)
        self.synced.set()
        self._notify(changed)

    async def _wait_until_due(self) -> None:
        """Wait until the next list is due."""
        due = self.clock() + self.relist_seconds
        while (left := due - self.clock()) > 0:
            await asyncio.sleep(min(left, WATCH_FORBIDDEN_RELIST_SECONDS))
            if self._watch_permission in self.session.permissions.missing():
                return

    @property
    def _watch_permission(self) -> Permission:
        return Permission("watch", TRAINING_JOBS.qualified, self.namespace)

    def _notify(self, changed: set[str]) -> None:
        for uid in changed:
            self.on_change(uid)


def _describe(error: ApiError) -> str:
    return f"{error} (is the CRD installed?)" if error.not_found else str(error)
