"""Ends that cost nothing, one after the other: they wait and escalate like others, unless the job gets further between them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.jobs import NOW, Scene, ago, job, stored
from tests.unit.domain.recovering import RUNS
from trainyard.api.internal_status import Backoff, RestartBudget
from trainyard.api.reasons import Reason
from trainyard.api.recovery import RestartScope
from trainyard.api.status import ConditionType, Phase, Restarts
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import RankProgress, WorkerReport

ALL = job(3).running()


def report(scene: Scene, index: int, *steps: int | None) -> WorkerReport:
    ranks = tuple(RankProgress(number, step, "train") for number, step in enumerate(steps))
    return WorkerReport(scene.status.attempt, index, ranks)


def delays(exit_code: int, *steps: int, first: Scene = ALL) -> list[float]:
    """Seconds until the next attempt begins, where attempts end soon after they start, after these steps."""
    scene, waits = first, []
    for step in steps:
        status = plan(scene.failed(1, exit_code=exit_code, step=step, seconds_ago=10).snapshot, NOW).status
        assert status == stored(status)
        assert status.internal.backoff.not_before is not None
        waits.append((status.internal.backoff.not_before - NOW).total_seconds())
        scene = Scene(scene.spec, status).running(attempt=status.attempt)
    return waits


@pytest.mark.parametrize("code", [1, 90, 92])
@pytest.mark.parametrize(
    ("steps", "expected"),
    [([6, 6, 6, 6], [0, 2, 4, 8]), ([6, 5, 6, 4], [0, 2, 4, 8]), ([5, 6, 7, 8], [0, 0, 0, 0])],
)
def test_who_gets_no_further_waits_longer_each_time(code: int, steps: list[int], expected: list[float]) -> None:
    unlimited = job(3, recovery={"noProgressLimit": 100}).running()
    assert delays(code, *steps, first=unlimited) == expected
    failed_once = unlimited.with_status(restarts=Restarts(failures=1), restart_budget=RestartBudget(furthest_step=4))
    assert delays(code, *steps, first=failed_once) == expected


def test_repeated_exit_92_escalates_the_scope() -> None:
    scene, scopes = RUNS.with_status(restarts=Restarts(failures=1), restart_budget=RestartBudget(furthest_step=5)), []
    for _ in range(6):
        status = plan(scene.reported_failed(1, exit_code=92, step=6, seconds_ago=10).snapshot, NOW).status
        scopes.append(status.internal.backoff.scope)
        made = Scene(scene.spec, status.evolve(group=None)).running(attempt=status.attempt)
        scene = made.with_agents()
    assert scopes == [RestartScope.PROCESS] * 2 + [RestartScope.POD] * 2 + [RestartScope.GROUP] * 2


@pytest.mark.parametrize("code", [90, 92])
def test_repeated_uncounted_exits_are_counted_without_progress(code: int) -> None:
    scene, charged = job(3, recovery={"maxRestarts": 2}).running(), []
    for _ in range(6):
        status = plan(scene.failed(1, exit_code=code, seconds_ago=10).snapshot, NOW).status
        charged.append(status.restarts.failures)
        scene = Scene(scene.spec, status).running(attempt=status.attempt)
    assert charged == [0, 0, 0, 1, 2, 3]
    assert scene.status.phase is Phase.FAILED
    (failed,) = (each for each in scene.status.conditions if each.type == ConditionType.FAILED)
    assert failed.reason == Reason.RESTARTS_EXHAUSTED
    assert "(counted: the previous attempts also ended early)" in failed.message


@pytest.mark.parametrize(
    ("ran", "step", "rules"),
    [
        pytest.param(90, None, [], id="it ran for a while"),
        pytest.param(20, 9, [], id="it got further"),
        pytest.param(20, None, [{"exitCodes": [92], "action": "Ignore"}], id="the user says so"),
    ],
)
def test_otherwise_it_is_accepted(ran: int, step: int | None, rules: list[dict[str, object]]) -> None:
    scene = job(3, recovery={"rules": rules}).running().with_status(running_time=ago(ran), backoff=Backoff(count=5))
    scene = scene.with_status(restarts=Restarts(disruptions=5), restart_budget=RestartBudget(furthest_step=8))
    after = plan(scene.failed(1, exit_code=92, step=step, seconds_ago=1).snapshot, NOW + timedelta(seconds=5)).status
    assert (after.restarts.failures, after.restarts.disruptions) == (0, 6)


def test_progress_that_an_uncharged_end_shows_forgives_too() -> None:
    scene = ALL.with_status(restarts=Restarts(failures=7), restart_budget=RestartBudget(furthest_step=5))
    after = plan(scene.failed(1, exit_code=90, step=6).snapshot, NOW).status
    assert after.restarts == Restarts(failures=7, disruptions=1)
    assert after.internal.restart_budget == RestartBudget(furthest_step=6, forgiven=7)
    windowed = (
        job(3, recovery={"windowSeconds": 3600})
        .running()
        .with_status(restarts=Restarts(failures=7), restart_budget=RestartBudget(furthest_step=5, recent=[NOW] * 7))
    )
    assert plan(windowed.failed(1, exit_code=90, step=6).snapshot, NOW).status.internal.restart_budget.recent == []


@pytest.mark.parametrize("how", ["failed", "deleted", "gone"])
def test_silent_worker_counts_as_at_last_reported_step(how: str) -> None:
    scene = ALL.with_status(restart_budget=RestartBudget(furthest_step=4), backoff=Backoff(count=3))
    reports = [report(scene, 0, 9, 9), report(scene, 1, 7, 8, None)]
    snapshot = replace(getattr(scene, how)(1).snapshot, reports=reports)
    status = plan(snapshot, NOW + timedelta(seconds=1)).status
    assert status.internal.restart_budget.furthest_step == 8
    assert status.internal.backoff.count == 1
    assert (status.last_failure.step if status.last_failure else None) == (8 if how == "failed" else None)


def test_last_report_wins_and_other_attempts_are_ignored() -> None:
    at_step_12 = ALL.failed(1, step=12)
    assert (
        plan(
            replace(at_step_12.snapshot, reports=[report(at_step_12, 1, 7)]), NOW
        ).status.internal.restart_budget.furthest_step
        == 12
    )
    silent = job(3).running(attempt=2)
    old = report(ALL, 1, 7)
    assert (
        plan(replace(silent.failed(1).snapshot, reports=[old]), NOW).status.internal.restart_budget.furthest_step
        is None
    )
