"""Faults that strike at the n-th write or the n-th event of a watch. Each is a few lines over the proxy's hooks."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar, Final

from typing_extensions import override

from tests.chaos.proxy import Answer, Call, CutError, Event, Events
from tests.chaos.scenario_run import ScenarioFault

GAP_SECONDS: Final = 1.0
"""Seconds for which a watch receives nothing before it learns that it has missed something."""
EXPIRED: Final = {"type": "ERROR", "object": {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}}


class AtWrite(ScenarioFault):
    """Strikes once, at the write of this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def due(self, call: Call) -> bool:
        meant = call.number == self.number
        self.struck |= meant
        return meant


class KillBefore(AtWrite):
    """The operator dies with the request in its hands."""

    @override
    async def before(self, call: Call) -> Answer | None:
        if self.due(call):
            self.stage.kill(call.who)
            raise CutError
        return None


class KillAfter(AtWrite):
    """The operator dies when the server has done its will and before it knows."""

    @override
    async def after(self, call: Call, answer: Answer) -> Answer:
        if self.due(call):
            self.stage.kill(call.who)
            raise CutError
        return answer


class Depose(KillAfter):
    """The same, with another operator waiting for the Lease."""

    replicas = 2
    settings: ClassVar[Mapping[str, str]] = {
        "TRAINYARD_LEADER_ELECTION": "true",
        "TRAINYARD_LEASE_DURATION_SECONDS": "3",
    }


class LoseRequest(AtWrite):
    """The connection breaks before the request has arrived."""

    @override
    async def before(self, call: Call) -> Answer | None:
        if self.due(call):
            raise CutError
        return None


class LoseAnswer(AtWrite):
    """The server does it, and the connection breaks before the answer has arrived."""

    @override
    async def after(self, call: Call, answer: Answer) -> Answer:
        if self.due(call):
            raise CutError
        return answer


class FalseError(AtWrite):
    """The server does it, and what stands before it says that it failed."""

    @override
    async def after(self, call: Call, answer: Answer) -> Answer:
        if not self.due(call):
            return answer
        return Answer.refusal(500, "InternalError") if self.number % 2 else Answer.refusal(504, "Timeout")


class AtEvent(ScenarioFault):
    """Strikes once, at the event of this number, counted over all watches; bookmarks do not count."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._seen = 0

    def due(self, event: Event) -> bool:
        self._seen += event["type"] != "BOOKMARK"
        meant = not self.struck and self._seen == self.number
        self.struck |= meant
        return meant

    @override
    async def stream(self, call: Call, events: Events) -> AsyncIterator[Event]:
        while (event := await events.get()) is not None:
            if self.due(event):
                async for delivered in self.strike(event, events):
                    yield delivered
                return
            yield event

    def strike(self, event: Event, events: Events) -> AsyncIterator[Event]:
        """Yield what is delivered from this event on. The watch ends after it."""
        raise NotImplementedError


async def _rest(events: Events) -> AsyncIterator[Event]:
    while (event := await events.get()) is not None:
        yield event


class Hide(AtEvent):
    """The watch receives nothing for a while and then learns that it has missed something: only a list can show what."""

    @override
    async def strike(self, event: Event, events: Events) -> AsyncIterator[Event]:
        await asyncio.sleep(GAP_SECONDS)
        yield EXPIRED


class Close(AtEvent):
    """The connection breaks in the middle of the event."""

    @override
    async def strike(self, event: Event, events: Events) -> AsyncIterator[Event]:
        raise CutError
        yield event


class Refuse(AtEvent):
    """The watch ends before the event, and the next one is refused: its version is too old."""

    _refusing = ""

    @override
    async def strike(self, event: Event, events: Events) -> AsyncIterator[Event]:
        self._refusing = event["object"]["kind"]
        return
        yield event

    @override
    async def before(self, call: Call) -> Answer | None:
        if call.watch and self._refusing and call.resource == f"{self._refusing.lower()}s":
            self._refusing = ""
            return Answer.refusal(410, "Expired")
        return None


class Repeat(AtEvent):
    """The event is delivered twice, and once more after the next: late and out of order."""

    @override
    async def strike(self, event: Event, events: Events) -> AsyncIterator[Event]:
        yield event
        yield event
        if (following := await events.get()) is None:
            return
        yield following
        yield event
        async for delivered in _rest(events):
            yield delivered


class Merge(AtEvent):
    """The event and the next one of the same object become one; a birth and a death leave nothing."""

    @override
    async def strike(self, event: Event, events: Events) -> AsyncIterator[Event]:
        held: deque[Event] = deque([event])
        try:
            async with asyncio.timeout(GAP_SECONDS):
                while (following := await events.get()) is not None:
                    held.append(following)
                    if _uid(following) == _uid(event):
                        held.popleft()
                        if (event["type"], following["type"]) == ("ADDED", "DELETED"):
                            held.pop()
                        break
        except TimeoutError:
            pass
        for delivered in held:
            yield delivered
        async for delivered in _rest(events):
            yield delivered


def _uid(event: Event) -> Any:
    return event["object"]["metadata"].get("uid")
