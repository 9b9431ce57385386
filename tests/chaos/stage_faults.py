"""Faults that strike at a stage of a scenario, while nothing is in progress, and last during the next act."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from typing import ClassVar, Final

from typing_extensions import override

from tests.chaos.proxy import Answer, Call, CutError, Event, Events
from tests.chaos.scenario_run import ScenarioFault

STORM_SECONDS: Final = 3.0
ABSENT_SECONDS: Final = 2.0


class AtStage(ScenarioFault):
    """Strikes once, at the stage of this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    @override
    async def at_stage(self, number: int) -> None:
        if number == self.number:
            self.struck = True
            await self.strike()

    async def strike(self) -> None:
        """Start the fault. A task ends it later."""
        raise NotImplementedError


class Absent(AtStage):
    """The operator is killed, and absent during the next act."""

    @override
    async def strike(self) -> None:
        self.stage.kill(away=ABSENT_SECONDS)


class Leave(AtStage):
    """The operator gets SIGTERM, as at each rollout."""

    @override
    async def strike(self) -> None:
        self.stage.kill(how=signal.SIGTERM)


class Storm(AtStage):
    """Every request fails for a while."""

    raging = False

    @override
    async def strike(self) -> None:
        self.raging = True
        self.stage.tasks.create_task(self._calm_down())

    async def _calm_down(self) -> None:
        await asyncio.sleep(STORM_SECONDS)
        self.raging = False

    @override
    async def before(self, call: Call) -> Answer | None:
        return self.answer() if self.raging else None

    def answer(self) -> Answer:
        """The error."""
        raise NotImplementedError


class Overload(Storm):
    """429 with `Retry-After`."""

    @override
    def answer(self) -> Answer:
        return Answer.refusal(429, "TooManyRequests", retry_after=1)


class Breakdown(Storm):
    """500 without details, and the watches break."""

    @override
    def answer(self) -> Answer:
        return Answer.refusal(500, "InternalError")

    @override
    async def stream(self, call: Call, events: Events) -> AsyncIterator[Event]:
        while (event := await events.get()) is not None:
            if self.raging:
                raise CutError
            yield event


class Restart(AtStage):
    """The API server is stopped by SIGTERM and restarted."""

    how = signal.SIGTERM

    @override
    async def strike(self) -> None:
        await self.stage.plane.restart_api_server(self.how)


class Crash(Restart):
    """The API server is killed and restarted."""

    how = signal.SIGKILL


class Stale(AtStage):
    """The operator is killed, and its successor's first lists are those of the previous stage, as from a lagging
    server.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._kept: dict[str, Answer] = {}

    @override
    async def at_stage(self, number: int) -> None:
        if number < self.number:
            for place in self._kept:
                self._kept[place] = Answer(200, json.dumps(await self.stage.client.call("GET", place)).encode())
        await super().at_stage(number)

    @override
    async def after(self, call: Call, answer: Answer) -> Answer:
        if not call.listing:
            return answer
        place = f"{call.path}?{call.query}"
        if self.struck:
            return self._kept.pop(place, answer)
        return self._kept.setdefault(place, answer)

    @override
    async def strike(self) -> None:
        self.stage.kill()


class Lag(AtStage):
    """Each list of TrainingJobs returns the state of this stage for a while."""

    settings: ClassVar[Mapping[str, str]] = {"TRAINYARD_RELIST_SECONDS": "1"}

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._kept: dict[str, Answer] = {}
        self.lagging = False

    @override
    async def strike(self) -> None:
        self.lagging = True
        self.stage.tasks.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        await asyncio.sleep(STORM_SECONDS)
        self.lagging = False

    @override
    async def after(self, call: Call, answer: Answer) -> Answer:
        if not call.listing:
            return answer
        place = f"{call.path}?{call.query}"
        return self._kept.setdefault(place, answer) if self.lagging else answer


class Stall(AtStage):
    """All open watches go silent without being closed, as with half-open connections."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._open: set[int] = set()
        self._dead: set[int] = set()

    @override
    async def strike(self) -> None:
        self._dead = {*self._open}

    @override
    async def stream(self, call: Call, events: Events) -> AsyncIterator[Event]:
        self._open.add(id(call))
        try:
            while True:
                event = await events.get()
                if id(call) in self._dead:
                    await asyncio.Event().wait()
                if event is None:
                    return
                yield event
        finally:
            self._open.discard(id(call))
