"""Where there is time for it, all ranks stop after the same step before their attempt ends."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.jobs import NOW, Scene, ago, job
from tests.unit.domain.recovering import RUNS, act, after, made_in
from trainyard.api.agent_protocol import AgentState, StopProgress
from trainyard.api.base import MAX_JSON_INTEGER
from trainyard.api.internal_status import CoordinatedStop
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C
from trainyard.domain.plan import plan
from trainyard.domain.recovery.failure_policy import apply_failure_policy
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.worker_views import AgentView
from trainyard.domain.stop.coordinated_stop import plan_coordinated_stop

ASKED = CoordinatedStop(attempt=1, time=ago(1), reason="worker 1 (pod train-worker-1-1) is being disrupted: Deleted")
KNOWN = ASKED.evolve(step=8)
SAVED = "rank 0 ended with exit code 90"


def part(scene: Scene, *leaves: StopProgress | None, state: AgentState = AgentState.RUNNING) -> Scene:
    """The workers, from the first on, as far as this on the way."""
    made = {f"pod-{i}-1": AgentView(1, state, since=ago(60), leave=leave) for i, leave in enumerate(leaves)}
    return replace(scene, agents={**(scene.agents or {}), **made})


ABLE = part(RUNS, StopProgress(), StopProgress(), StopProgress())
LEAVES = ABLE.deleted(1, seconds_ago=1, grace=30)
WAITS = LEAVES.with_status(coordinated_stop=ASKED)


def waiting(*passed: int | None) -> list[StopProgress]:
    return [StopProgress(asked=True, passed=step) for step in passed]


STOPS = part(LEAVES, *waiting(7, 7, 7)).with_status(coordinated_stop=KNOWN)


def saved(scene: Scene, *indexes: int) -> Scene:
    for index in indexes:
        scene = scene.reported_failed(index, exit_code=90, message=SAVED)
    return scene


def test_disruption_triggers_a_coordinated_stop_first() -> None:
    decided = act(LEAVES)
    assert (decided.status.attempt, decided.actions) == (1, ())
    stop = decided.status.internal.coordinated_stop
    assert stop == ASKED.evolve(time=NOW)
    assert decided.requeue_after == 10


def test_deletion_suspension_and_resize_stop_in_coordination_too() -> None:
    asked = part(ABLE, StopProgress(), StopProgress(), StopProgress(leaving=True))
    reasons = [
        act(scene).status.internal.coordinated_stop
        for scene in (asked, ABLE.with_spec(lifecycle={"suspend": True}), ABLE.with_spec(replicas=2))
    ]
    assert [stop.reason if stop else None for stop in reasons] == [
        "worker 2 (pod train-worker-2-1) is being terminated",
        "lifecycle.suspend is set",
        "replicas was changed to 2",
    ]


@pytest.mark.parametrize(
    "scene",
    [
        part(LEAVES, None, None, None),
        part(LEAVES, StopProgress(), state=AgentState.FAILED),
        LEAVES.with_unreachable_node(2),
        part(LEAVES, StopProgress(), StopProgress(), StopProgress()).disconnected(2),
        replace(LEAVES, agents={}),
        LEAVES.gone(2),
    ],
    ids=["none takes part", "one has failed", "one is silent", "one is away", "no agents", "one is gone"],
)
def test_incapable_worker_makes_no_worker_wait(scene: Scene) -> None:
    decided = act(scene)
    assert decided.status.internal.coordinated_stop is None
    assert decided.status.attempt == 2 or decided.requeue_after is not None


def test_ranks_may_join_shortly_after_the_request() -> None:
    early = part(LEAVES, StopProgress(), StopProgress(), None)
    assert act(early).status.internal.coordinated_stop == ASKED.evolve(time=NOW), "two are asked to wait"
    one_missing = part(WAITS, *waiting(7, 7), None)
    assert (act(one_missing).status, act(one_missing).requeue_after) == (WAITS.status, 2.0)
    assert act(part(one_missing, *waiting(7, 7, 6))).status.internal.coordinated_stop == KNOWN
    never = one_missing.with_status(coordinated_stop=ASKED.evolve(time=ago(3)))
    assert act(never).status.attempt == 2, "a rank that never calls must_stop costs three seconds"


def test_missing_answers_are_waited_for() -> None:
    decided = act(part(WAITS, *waiting(7, 6)))
    assert (decided.status, decided.requeue_after) == (WAITS.status, 9.0)
    late = part(LEAVES.with_status(coordinated_stop=ASKED.evolve(time=ago(10))), *waiting(7, 6))
    assert act(late).status.attempt == 2, "and no longer than a rank waits"


def test_the_step_after_the_furthest_is_the_last() -> None:
    decided = act(part(WAITS, *waiting(7, 6, 5)))
    assert decided.status.internal.coordinated_stop == KNOWN
    [event] = decided.events
    assert (event.type, event.reason) == ("Normal", Reason.COORDINATED_STOP)
    assert event.note == f"{ASKED.reason}: all ranks stop after step 8"


@pytest.mark.parametrize(
    ("passed", "step"), [((-1, -1, -1), 0), ((0, -1, 0), 1), ((MAX_JSON_INTEGER - 1, 0, 0), MAX_JSON_INTEGER)]
)
def test_the_first_step_and_the_last_of_all(passed: tuple[int, ...], step: int) -> None:
    stop = act(part(WAITS, *waiting(*passed))).status.internal.coordinated_stop
    assert stop is not None
    assert stop.step == step


def test_stop_step_is_named_in_time_or_never() -> None:
    late = LEAVES.with_status(coordinated_stop=ASKED.evolve(time=ago(10)))
    assert act(part(late, *waiting(7, 6, 5))).status.attempt == 2, "some may not wait any more when it reaches them"


@pytest.mark.parametrize("scene", [LEAVES, WAITS, STOPS], ids=["before", "waiting", "stopping"])
def test_agent_reconnecting_to_report_is_waited_for(scene: Scene) -> None:
    def hung_up(seconds: float) -> Scene:
        agents = scene.agents or {}
        return replace(scene, agents={**agents, "pod-2-1": replace(agents["pod-2-1"], left_at=ago(seconds))})

    assert (act(hung_up(1)).status, act(hung_up(1)).requeue_after) == (scene.status, 2.0)
    assert act(hung_up(3)).requeue_after != 2.0


def test_a_new_leader_receives_agent_reports_first() -> None:
    for scene in (ABLE.deleted(1), WAITS, ABLE.with_spec(lifecycle={"suspend": True})):
        fresh = replace(scene, agents={}, coordinator_up_since=ago(1))
        assert (act(fresh).status, act(fresh).requeue_after) == (scene.status, 5.0)


def test_rank_past_the_step_is_not_waited_for() -> None:
    beyond = StopProgress(asked=True)
    assert act(part(STOPS, StopProgress(asked=True, passed=7, at=8), beyond)).status.attempt == 2


def test_ranks_that_cannot_wait_are_not_waited_for() -> None:
    decided = act(part(WAITS, *waiting(7, None, 7)))
    assert (decided.status.attempt, decided.status.internal.coordinated_stop) == (2, None)


def test_cause_that_vanishes_before_the_step() -> None:
    again = ABLE.with_status(coordinated_stop=ASKED)
    assert act(again).status.internal.coordinated_stop is None
    known = part(ABLE.with_status(coordinated_stop=KNOWN), *(3 * [StopProgress(asked=True, passed=7, at=8)]))
    assert act(known).status.internal.coordinated_stop == KNOWN, "they will end, whatever becomes of the occasion"


def test_the_verdict_waits_until_all_have_ended() -> None:
    some = STOPS.reported_failed(0, exit_code=90, message=SAVED)
    assert (act(some).status, act(some).requeue_after) == (some.status, 29.0)
    done = some.reported_finished(1).reported_failed(2, exit_code=90, message=SAVED)
    meets = after(done)
    restarts = meets.status.restarts
    assert (meets.status.attempt, restarts.failures, restarts.disruptions) == (2, 0, 1)
    assert (made_in(meets), meets.status.internal.coordinated_stop) == ([1, 2, 1], None)
    restarting = str(meets.status.condition(C.RESTARTING))
    assert "worker 1 of attempt 1" in restarting
    assert "was disrupted: Deleted" in restarting
    assert "; all ranks were requested to stop after step 8; creating a new pod for worker 1" in restarting


def test_wait_is_bounded_by_the_deleted_pod() -> None:
    late = ABLE.deleted(1, seconds_ago=30, grace=30).with_status(coordinated_stop=KNOWN)
    assert act(late).status.attempt == 2


def test_wait_is_otherwise_the_pods_grace_period() -> None:
    knows = part(ABLE, *waiting(7, 7, 7)).with_status(coordinated_stop=KNOWN)
    suspended = knows.with_spec(lifecycle={"suspend": True})
    assert (act(suspended).status.attempt, act(suspended).requeue_after) == (1, 29.0)
    later = plan(suspended.snapshot, NOW + timedelta(seconds=29))
    assert later.status.suspended


def test_suspension_and_resize_proceed_once_all_exited() -> None:
    done = STOPS
    for index in range(3):
        done = done.reported_failed(index, exit_code=90, message=SAVED)
    ended = replace(done, pods=ABLE.pods)
    assert act(ended.with_spec(lifecycle={"suspend": True})).status.suspended
    resized = act(ended.with_spec(replicas=2)).status
    assert (resized.attempt, resized.restarts.resizes, resized.restarts.disruptions) == (2, 1, 0)


def test_failing_worker_ends_the_wait() -> None:
    failed = STOPS.reported_failed(0, exit_code=7)
    decided = act(failed)
    assert decided.status.attempt == 2
    assert decided.status.restarts.disruptions == 1, "the deletion came first"


def test_exit_90_of_all_workers_is_no_failure() -> None:
    ended = saved(ABLE.with_status(coordinated_stop=KNOWN), 0, 1, 2)
    assert act(ended).requeue_after == 2, "the request for it may still arrive"
    restarts = plan(ended.snapshot, NOW + timedelta(seconds=2)).status.restarts
    assert (restarts.failures, restarts.disruptions) == (0, 1)


def test_the_stop_of_an_earlier_attempt_is_none() -> None:
    old = LEAVES.with_status(coordinated_stop=KNOWN.evolve(attempt=7))
    assert old.status.stopping is None
    assert act(old).status.internal.coordinated_stop == ASKED.evolve(time=NOW)


LONG = part(ABLE.deleted(1, seconds_ago=1, grace=3600), *waiting(7, 7, 7)).with_status(
    coordinated_stop=KNOWN.evolve(time=ago(60))
)


def test_lost_worker_ends_the_stop_wait() -> None:
    assert act(LONG).status.attempt == 1
    assert act(LONG.with_unreachable_node(2, seconds_ago=60)).status.attempt == 2
    assert act(LONG.disconnected(2, seconds_ago=60)).status.attempt == 2


def test_active_deadline_ends_the_stop_wait() -> None:
    soon = LONG.with_spec(lifecycle={"activeDeadlineSeconds": 310})
    assert act(soon).requeue_after == 10
    assert act(LONG.with_spec(lifecycle={"activeDeadlineSeconds": 300})).status.holds(C.FAILED)


@pytest.mark.parametrize("step", [None, 8])
@pytest.mark.parametrize("time", [datetime.max.replace(tzinfo=UTC, microsecond=0), NOW + timedelta(hours=1)])
def test_time_in_the_future_counts_as_now(time: datetime, step: int | None) -> None:
    decided = act(LEAVES.with_status(coordinated_stop=ASKED.evolve(time=time, step=step)))
    assert decided.status.internal.coordinated_stop == ASKED.evolve(time=NOW, step=step)


@pytest.mark.parametrize(("left", "waits"), [(ago(-3600), None), (ago(-0.9), 4)], ids=["set back", "rounded"])
def test_clock_set_back_does_not_prolong_the_wait(left: datetime, waits: float | None) -> None:
    agents = LEAVES.agents or {}
    hung_up = replace(LEAVES, agents={**agents, "pod-2-1": replace(agents["pod-2-1"], left_at=left)})
    held = plan_coordinated_stop(hung_up.snapshot, NOW)
    assert (held and held.requeue_after) == waits


@pytest.mark.parametrize("grace", [0, 2, 30])
def test_pod_without_time_gets_no_coordinated_stop(grace: float) -> None:
    late = part(ABLE.deleted(1, seconds_ago=grace - 1, grace=grace), *(3 * [StopProgress()]))
    assert act(late).status.attempt == 2


def test_agreement_is_bounded_by_the_pods_time() -> None:
    assert act(part(ABLE.deleted(1, seconds_ago=1, grace=5), *(3 * [StopProgress()]))).requeue_after == 4


def test_requested_exit_is_not_counted_despite_rules() -> None:
    taken_back = saved(ABLE.with_status(coordinated_stop=KNOWN), 0, 1, 2)
    for recovery in ({"maxDisruptions": 0}, {"maxRestarts": 0, "rules": [{"exitCodes": [90], "action": "Restart"}]}):
        status = plan(taken_back.with_spec(recovery=recovery).snapshot, NOW + timedelta(seconds=3)).status
        assert (status.attempt, status.holds(C.FAILED), status.restarts.failures) == (2, False, 0)


def test_the_clocks_may_differ_about_what_came_first() -> None:
    ahead = saved(
        part(ABLE.deleted(1, seconds_ago=-2, grace=30), *waiting(7, 7, 7)).with_status(coordinated_stop=KNOWN), 0, 2
    )
    status = act(ahead.reported_finished(1)).status
    assert "worker 1 of attempt 1" in str(status.condition(C.RESTARTING))
    assert (status.restarts.failures, status.restarts.disruptions) == (0, 1)


def test_words_without_an_end_are_cut() -> None:
    stop = act(ABLE.disrupted(1, reason="x" * 2000)).status.internal.coordinated_stop
    assert stop is not None
    assert len(stop.reason) == 1024


def test_job_without_agents_does_not_wait() -> None:
    fresh = replace(job(1).running(), agents={}, coordinator_up_since=ago(1))
    assert act(fresh.with_spec(lifecycle={"suspend": True})).status.suspended
    assert act(fresh.deleted(0)).status.attempt == 2


@pytest.mark.parametrize(
    ("stop", "code", "failures"),
    [
        pytest.param(KNOWN, 90, 0, id="as requested"),
        pytest.param(KNOWN, 1, 1, id="an error instead"),
        pytest.param(ASKED, 90, 1, id="no step was named"),
        pytest.param(None, 90, 1, id="no stop"),
    ],
)
def test_only_the_requested_exit_ignores_rules(stop: CoordinatedStop | None, code: int, failures: int) -> None:
    rules = {"rules": [{"action": "Restart", "exitCodes": [1, 90]}]}
    scene = ABLE.with_spec(recovery=rules).with_status(coordinated_stop=stop).failed(1, exit_code=code)
    cause = Cause(Reason.WORKER_FAILED, 1, scene.pods[1], NOW)
    decided = apply_failure_policy(cause, scene.snapshot, NOW)
    assert decided.changes["restarts"].failures == failures
