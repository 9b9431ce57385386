"""How the restart scope escalates over a row of failures: by steps where they are known, and away from nodes that hurt."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, job, stored
from tests.unit.domain.recovering import RUNS, after, made_in
from trainyard.api.internal_status import Backoff, Rendezvous
from trainyard.api.reasons import Reason
from trainyard.api.recovery import RestartScope
from trainyard.api.status import Avoidance, ConditionType as C, SuspectNode
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import RankProgress, WorkerReport

XID = "CUDA error: unspecified launch failure"
P, K, F, A = RestartScope


def begun(scene: Scene, ran: float) -> Scene:
    """The attempt that a verdict asks for has run for so many seconds, each new pod where the old one was."""
    status = scene.status
    made = [status.created_in_attempt(pod.index) for pod in scene.pods]
    pods = tuple(
        replace(pod, attempt=attempt, uid=f"pod-{pod.index}-{attempt}", disruption=None, disrupted_at=None)
        for pod, attempt in zip(scene.pods, made, strict=True)
    )
    running = scene.with_status(
        rendezvous=Rendezvous(attempt=status.attempt, address="10.0.0.0"),
        launched_attempt=status.attempt,
        running_time=ago(ran),
    )
    return replace(running, pods=pods, agents=None).with_agents()


def escalated(
    ran: float,
    steps: Callable[[int], int | None],
    message: str = "",
    *,
    restartable: bool = False,
    **recovery: Any,
) -> tuple[list[RestartScope], Scene]:
    """By what means attempts began that worker 1 ended after so many seconds and these steps, until the job failed; and its end."""
    scene, scopes = begun(job(3, template=SUPERVISED, recovery=recovery).running(), ran), []
    scene = replace(scene, pods=tuple(replace(pod, restartable=restartable) for pod in scene.pods))
    for number in range(8):
        decided = plan(scene.reported_failed(1, step=steps(number), message=message).snapshot, NOW)
        assert decided.status == stored(decided.status)
        scene = replace(scene, status=decided.status)
        if scene.status.finished:
            break
        assert decided.status.internal.backoff.scope is not None
        scopes.append(decided.status.internal.backoff.scope)
        scene = begun(scene, ran)
    return scopes, scene


@pytest.mark.parametrize(
    ("ran", "steps", "scopes"),
    [
        pytest.param(20, lambda n: 200 - n, [P, P, F, F, A, A, A, A], id="never further"),
        pytest.param(90, lambda n: 200 - n, [P, P, F, F, A, A, A, A], id="never further, after a minute and a half"),
        pytest.param(7200, lambda n: 200 - n, [P, P, F, F, A, A, A, A], id="never further, after hours"),
        pytest.param(20, lambda n: 200 + n, [P] * 8, id="each time further"),
        pytest.param(20, lambda _: None, [P, P, F, F, A, A, A, A], id="nothing is known of steps"),
        pytest.param(90, lambda _: None, [P, P, F, F, A, A, A, A], id="nothing is known, after a minute and a half"),
        pytest.param(3600, lambda _: None, [P] * 8, id="nothing is known, after an hour"),
        pytest.param(3600, lambda n: None if n else 5, [P] * 8, id="a step is known once, after an hour"),
    ],
)
def test_a_row_of_failures(ran: float, steps: Callable[[int], int | None], scopes: list[RestartScope]) -> None:
    assert escalated(ran, steps)[0] == scopes


@pytest.mark.parametrize(
    ("steps", "scopes"),
    [
        pytest.param(lambda n: 200 - n, [P, P, K, K, F, F, A, A], id="never further"),
        pytest.param(lambda _: None, [P, P, K, K, F, F, A, A], id="nothing is known of steps"),
        pytest.param(lambda n: 200 + n, [P] * 8, id="each time further"),
        pytest.param(lambda _: 104, [P, F], id="at the same step a new pod comes first"),
    ],
)
def test_repeated_failures_with_container_restarts(
    steps: Callable[[int], int | None], scopes: list[RestartScope]
) -> None:
    assert escalated(20, steps, restartable=True)[0] == scopes


@pytest.mark.parametrize("ran", [20, 90])
def test_second_failure_at_a_step_gets_new_pod(ran: float) -> None:
    scopes, scene = escalated(ran, lambda _: 104)
    failed = scene.status.condition(C.FAILED)
    assert (scopes, failed and failed.reason) == ([P, F], Reason.NO_PROGRESS)
    assert made_in(scene) == [1, 3, 1]


def test_more_allowed_restarts_try_all_scopes() -> None:
    assert escalated(90, lambda _: 104, noProgressLimit=20)[0] == [P, F, F, A, A, A, A, A]


def test_new_streak_starts_with_the_cheapest_scope() -> None:
    scene = begun(after(RUNS.reported_failed(1, step=104)), 20)
    budget = scene.status.internal.restart_budget.evolve(at_same_step=None)
    changed = scene.with_status(restart_budget=budget, backoff=Backoff())
    assert after(changed.reported_failed(1, step=104)).status.internal.backoff.scope is P


def test_disruptions_are_no_tries() -> None:
    scene, scopes = begun(RUNS, 90), []
    for _ in range(4):
        scene = after(scene.disrupted(1))
        scopes.append(scene.status.internal.backoff.scope)
        scene = begun(scene, 90)
    assert scopes == [F] * 4


def test_backoff_resets_after_a_stable_minute() -> None:
    scene = begun(after(RUNS.reported_failed(1, step=104)), 60).with_status(
        backoff=Backoff(count=5, scope=P, scope_attempts=1)
    )
    retry = after(scene.reported_failed(1, step=90)).status.internal.backoff
    assert (retry.count, retry.not_before, retry.scope_attempts) == (1, NOW, 2)


def struck(strikes: int, avoided: Avoidance) -> SuspectNode:
    return SuspectNode(
        name="node1", failures=strikes, avoidance=avoided, reason="exit code 1", until=NOW.replace(hour=23)
    )


@pytest.mark.parametrize(
    ("suspects", "recovery", "message", "made"),
    [
        pytest.param([], {}, XID, [1, 1, 1], id="once is chance"),
        pytest.param([struck(1, Avoidance.NONE)], {}, XID, [1, 2, 1], id="twice is avoided from now on"),
        pytest.param([struck(2, Avoidance.PREFERRED)], {}, XID, [1, 2, 1], id="it was avoided already"),
        pytest.param([struck(1, Avoidance.NONE)], {}, "boom", [1, 1, 1], id="another kind of failure"),
        pytest.param([struck(1, Avoidance.NONE)], {"avoidNodes": False}, XID, [1, 1, 1], id="switched off"),
    ],
)
def test_a_worker_leaves_the_node_that_is_avoided(
    suspects: list[SuspectNode], recovery: dict[str, Any], message: str, made: list[int]
) -> None:
    scene = job(3, template=SUPERVISED, recovery=recovery).running().with_agents().with_status(suspect_nodes=suspects)
    broken = message if message == XID else ""
    assert made_in(after(scene.reported_failed(1, message=message, hardware_error=broken))) == made


def test_all_workers_leave_it_that_are_there() -> None:
    scene = RUNS.with_status(suspect_nodes=[struck(1, Avoidance.NONE)]).pod(2, node="node1")
    assert made_in(after(scene.reported_failed(1, message=XID, hardware_error=XID))) == [1, 2, 2]


def test_other_workers_stay_put_during_another_failure() -> None:
    scene = RUNS.with_status(suspect_nodes=[struck(2, Avoidance.PREFERRED)])
    assert made_in(after(scene.reported_failed(0, message="boom"))) == [1, 1, 1]


def test_hang_culprit_gets_the_new_pod() -> None:
    scene = job(4, template=SUPERVISED).running().with_agents().reported_failed(0, exit_code=91, step=9)
    tried = scene.with_status(backoff=Backoff(count=1, scope=P, scope_attempts=2))
    stands = [RankProgress(rank, 9, "train", stack=("load" if rank == 2 else "all_reduce",)) for rank in range(4)]
    reports = [WorkerReport(1, rank.rank, (rank,)) for rank in stands]
    status = plan(replace(tried.snapshot, reports=reports), NOW).status
    assert [status.created_in_attempt(index) for index in range(4)] == [1, 1, 2, 1]


END = st.tuples(
    st.sampled_from([None, 104, 104, 104, 105]),
    st.sampled_from([20, 90, 7200]),
    st.sampled_from([XID, "boom", ""]),
    st.integers(0, 2),
)


@given(st.lists(END, min_size=3, max_size=10))
def test_no_progress_fails_only_after_a_new_pod(
    ends: list[tuple[int | None, int, str, int]],
) -> None:
    """An end without words is a disruption."""
    scene = begun(RUNS, 20)
    for step, ran, message, index in ends:
        scene = scene.with_status(running_time=ago(ran))
        broken = message if message == XID else ""
        failed = scene.reported_failed(index, step=step, message=message, hardware_error=broken)
        ended = failed if message else scene.disrupted(index)
        before = scene.status.internal.backoff.scope
        scene = replace(scene, status=plan(ended.snapshot, NOW).status)
        condition = scene.status.condition(C.FAILED)
        if condition and condition.reason == Reason.NO_PROGRESS:
            assert before in {F, A}
        if scene.status.finished:
            break
        scene = begun(scene, ran)
