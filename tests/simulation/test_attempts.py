"""The attempt protocol under random schedules, and the proof that each law can fail: bugs planted for it, which it finds."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.attempts.attempt_simulation import InvariantError
from tests.simulation.attempts.schedule import play
from trainyard.api.status import TrainingJobStatus
from trainyard.coordinator import assignments
from trainyard.domain.decisions import Outcome
from trainyard.domain.progress import goodput
from trainyard.domain.recovery import agent_reports
from trainyard.domain.scaling import group_size
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.status import transitions
from trainyard.domain.stop import coordinated_stop

SCHEDULES = 600
UNTIL_FOUND = 400


def test_no_attempts_overlap_and_all_recover() -> None:
    worlds = [play(seed) for seed in range(SCHEDULES)]
    # The schedules come to what they are for.
    assert sum(world.in_place for world in worlds) > SCHEDULES // 2
    assert sum(world.status.attempt for world in worlds) > 2 * SCHEDULES
    assert sum(len(world.stopped) for world in worlds) > SCHEDULES // 20
    assert sum(world.restarted for world in worlds) > SCHEDULES // 40
    assert sum(world.resized_in_place for world in worlds) > SCHEDULES // 20
    assert sum(world.joined for world in worlds) > SCHEDULES // 40
    assert sum(world.shrunk for world in worlds) > SCHEDULES // 20
    moved = [rank != index for world in worlds for given in world.ranks.values() for index, rank in given.items()]
    assert sum(moved) > SCHEDULES // 20


def test_each_step_is_counted_once() -> None:
    """But for some that a faulty attempt could not tell of, and the next made no time for."""
    worlds = [play(seed) for seed in range(SCHEDULES // 2)]
    goodputs = [world.status.goodput for world in worlds if world.status.goodput]
    assert len(goodputs) > 0.9 * len(worlds)
    assert sum(each.lost_seconds.repeated for each in goodputs) > 0.01 * sum(world.furthest for world in worlds)
    assert sum(each.productive_seconds for each in goodputs) > 0.99 * sum(world.furthest for world in worlds)


def always(_holds: object) -> Callable[..., object]:
    """A function that does not look."""
    return lambda *_, **__: _holds


def one_less(decided: Outcome | None) -> Outcome | None:
    """Return the outcome with the step before the one that it names."""
    stop = decided and decided.changes.get("coordinated_stop")
    if not decided or not stop or not stop.step:
        return decided
    earlier = stop.evolve(step=stop.step - 1)
    return replace(decided, changes={**decided.changes, "coordinated_stop": earlier})


BUGS: dict[str, tuple[object, str, Callable[[Any], object]]] = {
    "begins before all are ready": (
        Snapshot,
        "ready_workers",
        lambda _: property(lambda snapshot: {pod.index for pod in snapshot.current}),
    ),
    "begins at once": (TrainingJobStatus, "awaiting_rendezvous", lambda _: False),
    "does not wait for the pods that were replaced": (agent_reports, "is_lost", lambda _: always("yes")),
    "never gives up what is stuck": (agent_reports, "AGENT_READY_TIMEOUT", lambda it: it * 10**6),
    "a restarting container is waited for without an end": (
        agent_reports,
        "restarts_container",
        lambda _: always(""),
    ),
    "hears no failures": (agent_reports, "_merge", lambda _: lambda _snapshot, pod, *_, **__: pod),
    "replaced workers go on": (assignments, "is_replaced", lambda _: always("")),
    "names a step when ranks do not wait any more": (coordinated_stop, "STEP_REPORT_TIMEOUT", lambda it: it * 10**6),
    "names the step that the furthest has passed": (
        coordinated_stop,
        "_choose_step",
        lambda it: lambda *arguments: one_less(it(*arguments)),
    ),
    "what was done before is forgotten": (goodput, "_reached", lambda _: always(0)),
    "what is lost is not counted": (goodput, "_lost", lambda _: lambda before, *_, **__: before.lost_seconds),
    "workers receive the requested size in place of the group's": (
        assignments,
        "_group_size",
        lambda _: lambda job, _pod: job.spec.replicas,
    ),
    "who is to join is not made to wait": (TrainingJobStatus, "is_joining", lambda _: always("")),
    "those beyond a new size go on": (TrainingJobStatus, "includes", lambda _: always("yes")),
    "room is waited for without an end": (group_size, "capacity_timeout_left", lambda _: always(None)),
    "where there is room for some, all are waited for": (
        group_size,
        "target_size",
        lambda _: lambda snapshot, _now: snapshot.size.allowed,
    ),
    "who keeps a pod gets other ranks": (transitions, "_kept_order", lambda _: always(None)),
    "ranks begin before their order is stored": (
        assignments,
        "assignment",
        lambda it: lambda pod, *more: it(replace(pod, ranks_ordered=False), *more),
    ),
    "an end is no new attempt": (
        transitions,
        "_next_attempt",
        lambda it: lambda status, *more: {**it(status, *more), "attempt": status.attempt},
    ),
}


def search() -> None:
    """Until a law is broken."""
    for seed in range(UNTIL_FOUND):
        play(seed)


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_in_attempts_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, bug = BUGS[name]
    monkeypatch.setattr(where, what, bug(getattr(where, what)))
    with pytest.raises((InvariantError, KeyError)):
        search()
