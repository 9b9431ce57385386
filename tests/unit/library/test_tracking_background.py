"""A listener of a training may be slow, away or unwilling: no training waits, nothing is lost in silence, and the order stays."""

import argparse
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, strategies as st

from trainyard_torch.tracking.background import Background, RefusedError
from trainyard_torch.tracking.backlog import Backlog
from trainyard_torch.tracking.events import CheckpointSaved, Event, MetricsLogged, RunEnded, RunStarted, flat

PATIENCE = 30.0


def measured(step: int) -> MetricsLogged:
    return MetricsLogged(float(step), step, {"loss": 1 / (step + 1)})


class Listener:
    """A listener that stores what it receives; `receive` may raise, or take its time."""

    name = "the listener"

    def __init__(self, receive: Callable[[Sequence[Event]], None] = lambda _: None) -> None:
        self.receive, self.received, self.closed = receive, list[Event](), False

    def write(self, events: Sequence[Event], /) -> None:
        self.receive(events)
        self.received.extend(events)

    def register(self, *_: Any) -> str:
        return "1"

    def close(self) -> None:
        self.closed = True


def waits(go: threading.Event, _: Sequence[Event]) -> None:
    go.wait(PATIENCE)


def delivered(
    listener: Listener, events: Sequence[Event], *, seconds: float = PATIENCE, room: int = 4096
) -> Background:
    background = Background(listener, queue_size=room, pause=0.0, min_retry_seconds=0.01)
    for event in events:
        background.put(event)
    background.close(seconds)
    return background


COURSE: list[Event] = [
    RunStarted(0.0),
    *map(measured, range(200)),
    CheckpointSaved(0.0, 200, 1, "/c/1"),
    RunEnded(0.0, "finished"),
]


def test_events_arrive_in_order() -> None:
    listener = Listener()
    delivered(listener, COURSE)
    assert listener.received == COURSE
    assert listener.closed


def test_no_events_start_no_thread() -> None:
    before = threading.active_count()
    background = Background(Listener())
    assert threading.active_count() == before
    background.close(PATIENCE)


def test_training_does_not_wait_for_slow_listener() -> None:
    go = threading.Event()
    listener = Listener(partial(waits, go))
    background = Background(listener, pause=0.0)
    for event in COURSE:
        background.put(event)
    assert not background.flush(0.0), "it has heard nothing yet"
    assert listener.received == []
    go.set()
    assert background.flush(PATIENCE)
    assert listener.received == COURSE
    background.close(PATIENCE)


def test_a_recovered_listener_receives_all_once(caplog: pytest.LogCaptureFixture) -> None:
    tries = iter(range(5))

    def receive(_: Sequence[Event]) -> None:
        if next(tries, None) is not None:
            raise ConnectionError("no route to host\nand a page of more")

    listener = Listener(receive)
    with caplog.at_level(logging.INFO):
        background = Background(listener, pause=0.0, min_retry_seconds=0.001)
        for event in COURSE:
            background.put(event)
        assert background.flush(PATIENCE)
        background.close(PATIENCE)
    assert listener.received == COURSE
    assert [record.getMessage() for record in caplog.records] == [
        "cannot send events to the listener (no route to host): training continues, events are kept and sent again",
        "the listener answers again; 0 events were dropped",
    ]


def test_unreachable_listener_is_given_up_at_close(caplog: pytest.LogCaptureFixture) -> None:
    def receive(_: Sequence[Event]) -> None:
        raise ConnectionError

    begin = time.monotonic()
    delivered(Listener(receive), COURSE, seconds=0.3)
    assert time.monotonic() - begin < PATIENCE / 2
    assert caplog.messages[0].startswith("cannot send events to the listener")
    assert caplog.messages[1:] == ["the listener did not answer at the end: dropped 203 events"]


def test_what_is_refused_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    unwanted = {measured(7).step, measured(150).step}

    def receive(events: Sequence[Event]) -> None:
        if bad := [event for event in events if isinstance(event, MetricsLogged) and event.step in unwanted]:
            raise RefusedError(f"not step {bad[0].step}")

    listener = Listener(receive)
    delivered(listener, COURSE)
    assert listener.received == [
        event for event in COURSE if not (isinstance(event, MetricsLogged) and event.step in unwanted)
    ]
    assert caplog.messages == ["the listener rejects some events (not step 7): they are dropped"]


def test_a_full_backlog_grows_coarser_and_not_shorter() -> None:
    go = threading.Event()
    listener = Listener(partial(waits, go))
    background = Background(listener, queue_size=16, pause=0.0)
    for event in COURSE:
        background.put(event)
    go.set()
    background.close(PATIENCE)
    steps = [event.step for event in listener.received if isinstance(event, MetricsLogged)]
    assert steps == sorted(set(steps))
    assert len(listener.received) + background._backlog.left_out == len(COURSE)
    assert isinstance(listener.received[0], RunStarted)
    assert isinstance(listener.received[-1], RunEnded)


@st.composite
def courses(draw: st.DrawFn) -> list[Event]:
    """Some attempts that begin and end, with measurements and checkpoints in between."""
    steps = st.integers(0, 99)
    events: list[Event] = draw(
        st.lists(steps.map(measured) | steps.map(lambda step: CheckpointSaved(0.0, step, 1, "/c")), max_size=200)
    )
    ends: list[Event] = [RunStarted(0.0), RunEnded(0.0, "failed")]
    for event in draw(st.lists(st.sampled_from(ends), max_size=9)):
        events.insert(draw(st.integers(0, len(events))), event)
    return events


@given(courses(), st.integers(16, 40), st.integers(1, 9))
def test_a_backlog_is_never_larger_than_its_room(events: list[Event], room: int, most: int) -> None:
    backlog = Backlog(room)
    for event in events:
        backlog.put(event)
        assert len(backlog) <= room
    given_back = backlog.take(most)
    backlog.give_back(given_back)
    found = backlog.take(room)
    assert len(found) + backlog.left_out == len(events)
    rest = iter(events)
    assert all(any(event is other for other in rest) for event in found), "in the order in which they came"
    assert [e for e in found if isinstance(e, (RunStarted, RunEnded))] == [
        e for e in events if isinstance(e, (RunStarted, RunEnded))
    ]


def test_too_little_room() -> None:
    with pytest.raises(ValueError, match="capacity must be from 16 on, not 3"):
        Backlog(3)


@dataclasses.dataclass
class Optimizer:
    rate: float
    betas: tuple[float, float]


@pytest.mark.parametrize(
    ("given_ones", "names"),
    [
        ({"lr": 0.1, "data": {"path": "/d", "crop": {"size": 8}}}, {"lr": "0.1", "data.path": "/d", "data.crop.size": "8"}),
        (argparse.Namespace(a=None, o=Optimizer(0.5, (0.9, 0.99))), {"a": "None", "o.rate": "0.5", "o.betas": "(0.9, 0.99)"}),
        (Optimizer(1.0, (0.0, 0.0)), {"rate": "1.0", "betas": "(0.0, 0.0)"}),
    ],
)  # fmt: skip
def test_parameters_by_name(given_ones: Any, names: dict[str, str]) -> None:
    assert flat(given_ones) == names


def test_parameters_that_are_none() -> None:
    with pytest.raises(ValueError, match="parameters must be a mapping, a Namespace or a dataclass, got a list"):
        flat([1, 2])
