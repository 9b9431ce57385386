"""Candidates that are killed, stopped and cut off in any order, on clocks of their own: never two who write, and never none for long."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING, Any, cast

from hypothesis import given, settings, strategies as st

from tests.simulation.engine.virtual_time import Loop, Time
from tests.support.fake_cluster import FakeCluster, Json, RefusedError
from trainyard.engine.leader import LeaderElector, LeadershipLostError, LeaseTiming, NotLeadingError
from trainyard.kube.clock import ServerClock
from trainyard.kube.errors import ApiError
from trainyard.kube.lease import LEASES, LeaseClient

if TYPE_CHECKING:
    from trainyard.kube.session import Session

END = 150.0
CALM = 60.0
"""From then on nothing goes wrong any more."""
LATE = 8.0
"""A request may arrive, or be answered, so many seconds late."""
NAMES = ("a", "b", "c")
HEIRS = ("a", "b")
"""Those that know their earlier lives to be over, and do not wait for them."""
SKEW = 0.05
"""How much faster or slower a clock may go."""


@dataclass
class Network:
    """Requests to the one Lease, which arrive late, or never, or whose answers do."""

    time: Time
    loop: Loop
    cluster: FakeCluster
    random: Random
    clock: ServerClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = ServerClock(wall=self.time.seconds_of_day, steady=lambda: self.time.now)

    async def request(self, method: str, path: str, *, body: Json | None = None, timeout: float = 30.0) -> Json:  # noqa: ASYNC109 - the real one's
        answer: asyncio.Future[Json] = self.loop.create_future()
        bad = self.time.now < CALM
        fate = self.random.choice(["well"] * 6 + ["lost", "lost answer", "slow"]) if bad else "well"
        there, back = (self.random.uniform(0, LATE if fate == "slow" else 0.2) for _ in range(2))

        def arrive() -> None:
            try:
                result: Json | Exception = self._carry_out(method, body)
            except RefusedError as error:
                result = ApiError(error.status, error.reason, error.message)
            if fate != "lost answer":
                self.time.after(back, lambda: self.loop.dead or self.loop.call_soon(resolve, result))

        def resolve(result: Json | Exception) -> None:
            if answer.done():
                return
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        if fate != "lost":
            self.time.after(there, arrive)
        self.loop.call_later(timeout, resolve, ApiError(0, "Timeout", path))
        return await answer

    def _carry_out(self, method: str, body: Json | None) -> Json:
        if method == "GET":
            return self.cluster.get(LEASES, "home", "it")
        assert body is not None
        if method == "POST":
            return self.cluster.create(LEASES, "home", body)
        return self.cluster.replace(LEASES, "home", "it", body)


class Process:
    """A candidate that writes whenever it may, and comes back as another when it has ended."""

    def __init__(self, name: str, world: "Candidates") -> None:
        self.name = name
        self.world = world
        self.stopped_until = 0.0
        self.lives = 0
        self._begin()

    def _begin(self) -> None:
        self.lives += 1
        self.loop = Loop(self.world.time)  # type: ignore[abstract]  # typeshed calls abstract what asyncio leaves unimplemented
        network = Network(self.world.time, self.loop, self.world.cluster, self.world.random)
        rate = 1 + self.world.random.uniform(-SKEW, SKEW)
        offset = self.world.random.uniform(0, 1e6)
        self.elector = LeaderElector(
            LeaseClient(cast("Session", network), "home", "it"),  # it has the one method that is called
            f"{self.name}{self.lives}",
            holder_has_exited=lambda holder: self.name in HEIRS and holder.startswith(self.name),
            clock=lambda: offset + self.world.time.now * rate,
            random=self.world.random.random,
        )
        self.main = self.loop.create_task(self._run())

    async def _run(self) -> None:
        await self.elector.acquire()
        writing = asyncio.ensure_future(self._write())
        try:
            await self.elector.keep()
        except LeadershipLostError:
            return
        finally:
            writing.cancel()

    async def _write(self) -> None:
        while True:
            try:
                left = self.elector.permit()
            except NotLeadingError:
                return
            # The request carries its time limit: what arrives later is not carried out.
            latency = self.world.random.uniform(0, left * 1.2)
            if latency <= left:
                self.world.time.after(latency, partial(self.world.write, self.elector.identity))
            await asyncio.sleep(self.world.random.uniform(0.05, 0.5))

    async def _leave(self) -> None:
        self.elector.resign()
        self.main.cancel()
        # What is under way may take as long as it was given.
        await asyncio.sleep(0)
        await self.elector.release()

    def suffer(self, what: str, seconds: float) -> None:
        if what == "kill":
            self.loop.kill()
            self._begin()
        elif what == "stop":
            self.stopped_until = self.world.time.now + seconds
        elif what == "leave" and self.elector.leading:
            self.leaving = self.loop.create_task(self._leave())

    def step(self) -> bool:
        if self.world.time.now < self.stopped_until:
            return False
        if self.main.done() and not self.loop.busy:
            self._begin()
        return bool(self.loop.busy and self.loop.run(1))


@dataclass
class Candidates:
    """All processes, the Lease, and what was written by whom."""

    random: Random
    time: Time = field(default_factory=Time)
    cluster: FakeCluster = field(default_factory=FakeCluster)
    written: list[tuple[float, str]] = field(default_factory=list)

    def write(self, who: str) -> None:
        self.written.append((self.time.now, who))

    def run(self, faults: list[tuple[float, str, str, float]]) -> None:
        processes = {name: Process(name, self) for name in NAMES}
        for when, who, what, seconds in faults:
            self.time.at(when, partial(processes[who].suffer, what, seconds))
            self.time.at(when + seconds, lambda: None)  # a look at those who may go on
        while self.time.now < END:
            busy = [process for process in processes.values() if process.step()]
            if not busy:
                self.time.jump(END)
        for process in processes.values():
            process.loop.kill()


def _place(write: tuple[float, str]) -> str:
    """Where the writer has its lives: what one of them has under way when it ends may arrive after the next has begun."""
    return write[1][0]


FAULTS = st.lists(
    st.tuples(
        st.floats(1, CALM),
        st.sampled_from(NAMES),
        st.sampled_from(["kill", "stop", "stop", "leave"]),
        st.floats(0.1, 40),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(faults=FAULTS, seed=st.integers(0, 2**32))
def test_at_most_one_writer_and_short_gaps(faults: list[Any], seed: int) -> None:
    world = Candidates(Random(seed))  # noqa: S311 - a schedule, no secret
    world.run(faults)
    reigns = [[who for _, who in writes] for _, writes in groupby(world.written, key=_place)]
    returned = [who for who, count in Counter(who for reign in reigns for who in set(reign)).items() if count > 1]
    assert not returned, f"writes by one after writes in another place: {returned} in {reigns}"
    begin = max(CALM, *(when + seconds for when, _, what, seconds in faults if what == "stop"), 0) + LATE
    calm = [at for at, _ in world.written if at >= begin]
    silences = [after - before for before, after in zip([begin, *calm], [*calm, END], strict=True)]
    assert max(silences) < LeaseTiming().duration + LeaseTiming().retry_period * 2 + 1
