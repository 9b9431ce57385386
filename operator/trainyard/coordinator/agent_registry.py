"""Track the agents that are connected and their open long polls. In memory only: a new leader learns it within
seconds.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from trainyard.coordinator.fair_notifier import FairNotifier
from trainyard.domain.state.worker_views import AgentView

CLOCK_STEP_THRESHOLD = timedelta(seconds=1)
"""A wall clock that deviates more from the monotonic clock was set."""
MAX_TURNED_AWAY = 16_384
"""Addresses of workers that are remembered; the one that was closed first is forgotten first."""


def _details(agent: AgentView) -> tuple[object, ...]:
    """Return what may change while the agent stays in one state."""
    return agent.leave, agent.prepared, agent.idle


@dataclass(slots=True)
class AgentRegistry:
    """The agents by job UID, then by pod UID."""

    now: Callable[[], datetime]
    on_change: Callable[[str, float], object]
    """Called with a job's UID and the seconds after which to reconcile it."""
    monotonic: Callable[[], float] = time.monotonic
    notifier: FairNotifier = field(default_factory=FairNotifier)
    """Wakes long polls and resumes connections in rounds, where there are many at a time."""
    _checked: tuple[datetime, float] | None = field(default=None, init=False)
    """Wall clock and monotonic clock at the last look."""
    _since: datetime | None = field(default=None, init=False)
    _turned_away: dict[str, datetime] = field(default_factory=dict, init=False)
    """When a connection of a worker's address was last closed because of a limit."""
    _agents: dict[str, dict[str, AgentView]] = field(default_factory=dict, init=False)
    _polls: dict[str, set[asyncio.Future[None]]] = field(default_factory=dict, init=False)
    _latest: dict[str, "LongPoll"] = field(default_factory=dict, init=False)
    """The latest long poll of each pod: an earlier one no longer says whether the agent is connected."""

    @property
    def since(self) -> datetime:
        """Since when this process has accepted every agent that connects."""
        now = self._time()
        if self._since is None:
            self._since = now
        return self._since

    def restart_grace_period(self) -> None:
        """Start the grace period again: connections were refused, so an agent's absence is no evidence of a failure."""
        now = self._time()
        # A standby has not started it.
        self._since = self._since and now

    def turned_away(self, address: str) -> None:
        """Start the grace period of the pods at this address again: a connection of it was closed."""
        now = self._time()
        self._turned_away.pop(address, None)
        self._turned_away[address] = now
        if len(self._turned_away) > MAX_TURNED_AWAY:
            del self._turned_away[next(iter(self._turned_away))]

    def since_for(self, addresses: Iterable[str]) -> datetime:
        """Return since when this process has accepted every agent that connects from one of these addresses."""
        times = (self._turned_away[each] for each in addresses if each in self._turned_away)
        return max((self.since, *times))

    def of(self, job: str, pods: Iterable[str]) -> Mapping[str, AgentView]:
        """Return the agents of these pods that have connected. Agents of other pods of the job are forgotten."""
        self._time()
        known = self._agents.get(job)
        if not known:
            return {}
        kept = {pod: known[pod] for pod in pods if pod in known}
        for pod in known.keys() - kept.keys():
            self._latest.pop(pod, None)
        self._agents[job] = dict(kept)
        return kept

    def knows(self, job: str, pod: str) -> bool:
        """Return whether this pod's agent has connected to this process before."""
        return pod in self._agents.get(job, {})

    @contextmanager
    def long_poll(self, job: str, pod: str, reported: AgentView) -> Iterator["LongPoll"]:
        """Register what an agent reports, and its long poll while inside."""
        now = self._time()
        agents, poll = self._agents.setdefault(job, {}), LongPoll(self._polls.setdefault(job, set()))
        before = agents.get(pod)
        # A failure that is reported again, over another connection, did not happen later.
        same = before is not None and (before.attempt, before.state) == (reported.attempt, reported.state)
        since = before.since if before is not None and before.left_at is None else now
        if same and before is not None:
            reported = replace(reported, exit=before.exit, reported_at=before.reported_at)
        agents[pod] = replace(reported, reported_at=reported.reported_at or now, since=since)
        self._latest[pod] = poll
        if not same or before is None or before.left_at is not None or _details(before) != _details(reported):
            self.on_change(job, 0.0)
        try:
            yield poll
        finally:
            poll.is_open = False
            poll.cancel()
            if not self._polls.get(job):
                self._polls.pop(job, None)

    def disconnected(self, job: str, pod: str, poll: "LongPoll", error: BaseException | None) -> None:
        """Record that the connection of a long poll is gone. `error`: a timeout where the node no longer answers."""
        now, agents = self._time(), self._agents.get(job, {})
        if self._latest.get(pod) is not poll or pod not in agents:
            return
        vanished = isinstance(error, OSError) and not isinstance(error, ConnectionError)
        agents[pod] = replace(agents[pod], left_at=now, vanished=vanished)
        self.on_change(job, 0.0)

    def idle_disconnected(self, job: str, pod: str) -> None:
        """Record that the connection of an agent is gone while it had no open long poll."""
        now, agents, poll = self._time(), self._agents.get(job, {}), self._latest.get(pod)
        if pod in agents and agents[pod].left_at is None and not (poll and poll.is_open):
            agents[pod] = replace(agents[pod], left_at=now)
            self.on_change(job, 0.0)

    def dismiss(self, job: str, pod: str) -> None:
        """Forget an agent whose worker is no longer needed. The node reports the exit of its pod."""
        self._latest.pop(pod, None)
        if self._agents.get(job, {}).pop(pod, None) is not None:
            self.on_change(job, 0.0)

    def wake(self, job: str) -> None:
        """Wake all long polls of a job whose state changed."""
        for poll in self._polls.get(job, ()):
            self.notifier.notify(poll)

    def forget(self, job: str) -> None:
        """Forget a job that is deleted or finished."""
        self.wake(job)
        for pod in self._agents.pop(job, {}):
            self._latest.pop(pod, None)

    def _time(self) -> datetime:
        """Return the time. Where the clock was set, shift all stored times with it: only their age matters."""
        now, at = self.now(), self.monotonic()
        before, self._checked = self._checked, (now, at)
        step = now - before[0] - timedelta(seconds=at - before[1]) if before else timedelta()
        if abs(step) > CLOCK_STEP_THRESHOLD:
            self._since = self._since and self._since + step
            self._turned_away = {address: at + step for address, at in self._turned_away.items()}
            for agents in self._agents.values():
                for pod, agent in agents.items():
                    reported, since, left = (t and t + step for t in (agent.reported_at, agent.since, agent.left_at))
                    agents[pod] = replace(agent, reported_at=reported, since=since, left_at=left)
        return now

    @property
    def connected(self) -> int:
        """The number of connected agents."""
        return sum(agent.connected for agents in self._agents.values() for agent in agents.values())


class LongPoll:
    """A request of one agent that is answered when its assignment changes."""

    def __init__(self, polls: set[asyncio.Future[None]]) -> None:
        self._polls = polls
        self._waiter: asyncio.Future[None] | None = None
        self.is_open = True
        """Until it is answered or its connection is gone."""

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until the job's state changes, for at most this long."""
        self.cancel()
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        self._polls.add(waiter)
        # Cheaper than asyncio.wait and asyncio.timeout, which ten thousand agents would run at the same moment.
        timer = loop.call_later(seconds, _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    def cancel(self) -> None:
        """Stop waiting."""
        if self._waiter is not None:
            self._polls.discard(self._waiter)
            self._waiter.cancel()


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
