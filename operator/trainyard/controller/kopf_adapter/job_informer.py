"""TrainingJobs into their cache: kopf's events, and every few minutes an own list.

kopf has no list-and-compare: an object that is deleted while its watch is down stays for ever. The list finds it, and
everything else that was missed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.controller.reconcile.resources import TRAINING_JOBS, JobRecord, job_record
from trainyard.kube.backoff import Backoff
from trainyard.kube.errors import ApiError
from trainyard.kube.listing import read_all
from trainyard.kube.permissions import Permission
from trainyard.kube.resource import namespace_label
from trainyard.kube.session import Session
from trainyard.kube.store import Store

_LOG = logging.getLogger(__name__)
PAGE = 500
DEAF_SECONDS = 15.0
"""How often the jobs are listed while the account may not watch them: nothing else tells of a change then."""


@dataclass(slots=True)
class JobFeed:
    """Keeps `jobs` equal to what the API server holds in one namespace (None: in all)."""

    session: Session
    namespace: str | None
    jobs: Store[JobRecord, str]
    on_change: Callable[[str], None]
    relist_seconds: float
    clock: Callable[[], float] = time.monotonic
    backoff: Callable[[int], float] = field(default_factory=lambda: Backoff(cap=30.0))
    synced: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    missed: int = field(default=0, init=False)
    """Changes that a list found and the watch had not told of."""
    _listed_at: float = field(init=False)
    _failures: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._listed_at = self.clock()

    def age(self) -> float:
        """Seconds since the jobs were last listed (or since this was made)."""
        return self.clock() - self._listed_at

    def heard(self, kind: str | None, raw: Mapping[str, Any]) -> None:
        """An event of kopf's watch; `kind` is None for what it finds at its start."""
        uid, version = raw["metadata"]["uid"], int(raw["metadata"]["resourceVersion"])
        if kind == "DELETED":
            self._tell(self.jobs.remove(uid, version))
        elif not self.jobs.knows(uid, version):
            self._tell(self.jobs.apply(job_record(raw)))

    async def run(self) -> None:
        """List for ever."""
        while True:
            try:
                await self.relist()
                self._failures = 0
                await self._rest()
            except ApiError as error:
                self._failures += 1
                if self._failures == 1 and not error.permission_denied:
                    _LOG.warning(
                        f"cannot list TrainingJobs in {namespace_label(self.namespace)}, trying again until it works: {_hint(error)}"
                    )
                await asyncio.sleep(self.backoff(self._failures))

    async def relist(self) -> None:
        """List once, and compare with what is known."""
        items, version = await read_all(self.session, TRAINING_JOBS.path(self.namespace), {}, PAGE)
        try:
            records = [job_record(raw) for raw in items]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ApiError(0, "MalformedAnswer", f"an item of the list is no TrainingJob: {error!r}") from error
        changed = self.jobs.replace(records, int(version))
        self._listed_at = self.clock()
        if self.synced.is_set():
            self.missed += len(changed)
        self.synced.set()
        self._tell(changed)

    async def _rest(self) -> None:
        """Until the next list is due."""
        end = self.clock() + self.relist_seconds
        while (left := end - self.clock()) > 0:
            await asyncio.sleep(min(left, DEAF_SECONDS))
            if self._watch in self.session.permissions.missing():
                return

    @property
    def _watch(self) -> Permission:
        return Permission("watch", TRAINING_JOBS.qualified, self.namespace)

    def _tell(self, changed: set[str]) -> None:
        for uid in changed:
            self.on_change(uid)


def _hint(error: ApiError) -> str:
    return f"{error} (is the CRD installed?)" if error.not_found else str(error)
