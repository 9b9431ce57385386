"""Candidates for one Lease on a fake API server and a fake clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.fake_api import FakeApi
from tests.support.fake_cluster import Json
from tests.support.timers import FakeTimers
from tests.support.waiting import until
from trainyard.engine.leader import LeaderElector, LeadershipLostError, NotLeadingError
from trainyard.kube.lease import LEASES, LeaseClient

HOME, NAME = "home", "trainyard"


@dataclass(eq=False)
class Candidate:
    """One process of the election."""

    elector: LeaderElector
    timers: FakeTimers
    asleep: int = 0
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while the process is stopped, as by SIGSTOP."""
    task: asyncio.Task[None] | None = None

    @property
    def may_write(self) -> bool:
        try:
            return self.elector.permit() > 0
        except NotLeadingError:
            return False

    @property
    def lost(self) -> str:
        """Why it lost the lease; empty while it runs."""
        if self.task is None or not self.task.done():
            return ""
        error = self.task.exception()
        assert isinstance(error, LeadershipLostError), error
        return str(error)

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        self.timers.call_at(self.timers.time() + seconds, wake)
        self.asleep += 1
        try:
            await woken
            await self.stopped.wait()
        finally:
            self.asleep -= 1

    async def run(self) -> None:
        await self.elector.acquire()
        await self.elector.keep()

    def kill(self) -> None:
        """Stop it like `kill -9`: the lease is not released."""
        assert self.task is not None
        self.task.cancel()


@dataclass(eq=False)
class Election:
    """All candidates and their clock."""

    api: FakeApi
    timers: FakeTimers
    candidates: list[Candidate] = field(default_factory=list)

    def join(self, name: str, **fields: Any) -> Candidate:
        """Add a candidate, which starts at once."""
        client = LeaseClient(self.api.session(), HOME, NAME)
        elector = LeaderElector(client, name, clock=self.timers.time, random=lambda: 0.5, **fields)
        candidate = Candidate(elector, self.timers)
        candidate.stopped.set()
        elector.sleep = candidate.sleep
        candidate.task = asyncio.create_task(candidate.run())
        self.candidates.append(candidate)
        return candidate

    async def rest(self) -> None:
        """Wait until all work that is due is done."""
        await until(lambda: all(c.asleep or (c.task and c.task.done()) for c in self.candidates))

    async def wait(self, seconds: float, step: float = 0.1) -> None:
        """Advance the clock."""
        await self.rest()
        for _ in range(round(seconds / step)):
            self.timers.advance(step)
            # One iteration of the loop, so that woken candidates no longer count as asleep.
            await asyncio.sleep(0)
            await self.rest()

    async def until_writes(self, candidate: Candidate, within: float) -> float:
        """Advance the clock until the candidate may write. Return the seconds that passed."""
        began = self.timers.time()
        await self.rest()
        while not candidate.may_write:
            assert self.timers.time() - began < within, f"{candidate.elector.identity} does not lead after {within} s"
            await self.wait(0.1)
        return self.timers.time() - began

    def lease(self) -> Json:
        spec: Json = self.api.cluster.get(LEASES, HOME, NAME)["spec"]
        return spec

    def write(self, **spec: Any) -> None:
        """Write to the Lease as another client."""
        self.api.cluster.merge(LEASES, HOME, NAME, {"spec": spec})


@asynccontextmanager
async def election(api: FakeApi, timers: FakeTimers) -> AsyncIterator[Election]:
    held = Election(api, timers)
    try:
        yield held
    finally:
        for candidate in held.candidates:
            candidate.kill()
        await asyncio.gather(*(c.task for c in held.candidates if c.task), return_exceptions=True)
