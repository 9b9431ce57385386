"""Which agents are there, what they do, and who of them waits for a word. In memory alone: a new leader hears it from them within seconds."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from trainyard.coordinator.fair_notifier import Turns
from trainyard.domain.state.snapshot import AgentView

JUMP = timedelta(seconds=1)
"""A clock that goes so much otherwise than time does was set."""


def _told(agent: AgentView) -> tuple[object, ...]:
    """What may change while it does the same."""
    return agent.leave, agent.prepared


@dataclass(slots=True)
class Attendance:
    """By job, then by pod: the UIDs."""

    now: Callable[[], datetime]
    news: Callable[[str, float], object]
    """Called with a job's UID and the seconds after which to look at it."""
    monotonic: Callable[[], float] = time.monotonic
    turns: Turns = field(default_factory=Turns)
    """By which agents hear and are heard, where there are many at a time."""
    _looked: tuple[datetime, float] | None = field(default=None, init=False)
    _since: datetime | None = field(default=None, init=False)
    _agents: dict[str, dict[str, AgentView]] = field(default_factory=dict, init=False)
    _calls: dict[str, set[asyncio.Future[None]]] = field(default_factory=dict, init=False)
    _last: dict[str, "Call"] = field(default_factory=dict, init=False)
    """Of each pod the call that came last: an earlier one tells nothing any more."""

    @property
    def since(self) -> datetime:
        """Since when all agents that call are heard by this process."""
        now = self._time()
        if self._since is None:
            self._since = now
        return self._since

    def miss_nobody(self) -> None:
        """Not all that call are let in: who is away may be among them."""
        now = self._time()
        # Who stands by has yet to begin.
        self._since = self._since and now

    def of(self, job: str, pods: Iterable[str]) -> Mapping[str, AgentView]:
        """The agents of these pods that have called; the others are forgotten."""
        self._time()
        known = self._agents.get(job)
        if not known:
            return {}
        here = {pod: known[pod] for pod in pods if pod in known}
        for pod in known.keys() - here.keys():
            self._last.pop(pod, None)
        self._agents[job] = dict(here)
        return here

    def knows(self, job: str, pod: str) -> bool:
        """Whether this agent has called before."""
        return pod in self._agents.get(job, {})

    @contextmanager
    def call(self, job: str, pod: str, said: AgentView) -> Iterator["Call"]:
        """While an agent waits for a word."""
        now = self._time()
        agents, call = self._agents.setdefault(job, {}), Call(self._calls.setdefault(job, set()))
        before = agents.get(pod)
        # The same failure told again, over another connection, did not happen later.
        same = before is not None and (before.attempt, before.state) == (said.attempt, said.state)
        began = before.since if before is not None and before.left_at is None else now
        if same and before is not None:
            said = replace(said, exit=before.exit, reported_at=before.reported_at)
        agents[pod] = replace(said, reported_at=said.reported_at or now, since=began)
        self._last[pod] = call
        if not same or before is None or before.left_at is not None or _told(before) != _told(said):
            self.news(job, 0.0)
        try:
            yield call
        finally:
            call.waits = False
            call.end()
            if not self._calls.get(job):
                self._calls.pop(job, None)

    def left(self, job: str, pod: str, call: "Call", why: BaseException | None) -> None:
        """The connection of an agent is gone. `why`: a time-out where its node does not answer any more."""
        now, agents = self._time(), self._agents.get(job, {})
        if self._last.get(pod) is not call or pod not in agents:
            return
        vanished = isinstance(why, OSError) and not isinstance(why, ConnectionError)
        agents[pod] = replace(agents[pod], left_at=now, vanished=vanished)
        self.news(job, 0.0)

    def hung_up(self, job: str, pod: str) -> None:
        """The connection of an agent is gone, which was not waiting for a word just then."""
        now, agents, call = self._time(), self._agents.get(job, {}), self._last.get(pod)
        if pod in agents and agents[pod].left_at is None and not (call and call.waits):
            agents[pod] = replace(agents[pod], left_at=now)
            self.news(job, 0.0)

    def dismiss(self, job: str, pod: str) -> None:
        """This agent was told that it is not wanted any more. Of its end its node tells."""
        self._last.pop(pod, None)
        if self._agents.get(job, {}).pop(pod, None) is not None:
            self.news(job, 0.0)

    def wake(self, job: str) -> None:
        """Something is different about this job: whoever waits is to look."""
        for waiting in self._calls.get(job, ()):
            self.turns.tell(waiting)

    def forget(self, job: str) -> None:
        """The job is gone, or has ended."""
        self.wake(job)
        for pod in self._agents.pop(job, {}):
            self._last.pop(pod, None)

    def _time(self) -> datetime:
        """Now. Where the clock was set, what is known goes with it: it is of use for how long ago it was, and for nothing else."""
        now, at = self.now(), self.monotonic()
        before, self._looked = self._looked, (now, at)
        set_by = now - before[0] - timedelta(seconds=at - before[1]) if before else timedelta()
        if abs(set_by) > JUMP:
            self._since = self._since and self._since + set_by
            for agents in self._agents.values():
                for pod, agent in agents.items():
                    said, since, left = (
                        each and each + set_by for each in (agent.reported_at, agent.since, agent.left_at)
                    )
                    agents[pod] = replace(agent, reported_at=said, since=since, left_at=left)
        return now

    @property
    def connected(self) -> int:
        """Agents that are there."""
        return sum(agent.connected for agents in self._agents.values() for agent in agents.values())


class Call:
    """One agent that waits for a word."""

    def __init__(self, calls: set[asyncio.Future[None]]) -> None:
        self._calls = calls
        self._waits: asyncio.Future[None] | None = None
        self.waits = True
        """Until it was answered, or is over."""

    async def news(self, seconds: float) -> bool:
        """Wait until something is different, for so long at most. Whether it is."""
        self.end()
        waits = self._waits = asyncio.get_running_loop().create_future()
        self._calls.add(waits)
        done, _ = await asyncio.wait([waits], timeout=seconds)
        return bool(done)

    def end(self) -> None:
        """It does not wait any more."""
        if self._waits is not None:
            self._calls.discard(self._waits)
            self._waits.cancel()
