"""The restart scopes: by which one a group restarts after which fault."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, job, stored
from tests.unit.domain.recovering import RUNS, act, after, made_in
from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import MAX_REPLACEMENTS, Backoff, Group, Rendezvous, Replacement
from trainyard.api.reasons import Reason
from trainyard.api.recovery import RestartScope
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.decisions import CreateWorker, DeletePod, StopPod
from trainyard.domain.plan import plan
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import AgentView


def test_a_failed_process_leaves_all_pods_in_place() -> None:
    decided = plan(RUNS.reported_failed(1, exit_code=3, message="rank 1 ended with exit code 3: boom").snapshot, NOW)
    status = decided.status
    assert (status.attempt, status.phase, status.internal.backoff.scope) == (2, Phase.RESTARTING, RestartScope.PROCESS)
    assert (status.internal.group, status.internal.launched_attempt, status.restarts.failures) == (
        Group(created_in_attempt=1, size=3),
        2,
        1,
    )
    assert status.last_failure is not None
    assert (status.last_failure.exit_code, status.last_failure.pod) == (3, "train-worker-1-1")
    assert decided.events[0].note == (
        "worker 1 of attempt 1 (pod train-worker-1-1 on node1) failed with exit code 3 (Error): rank 1 ended with exit code 3: boom "
        "(1 of 10 restarts used); restarting processes in place as attempt 2"
    )


def test_nothing_is_made_or_deleted_for_it() -> None:
    waits = act(after(RUNS.reported_failed(1)))
    assert (waits.actions, waits.status.awaiting_rendezvous, waits.status.phase) == ([], True, Phase.RESTARTING)


def test_all_begin_once_all_are_ready() -> None:
    meets = after(RUNS.reported_failed(1))
    most = meets.with_agents(AgentState.WAITING, 0, 2)
    assert act(most).status.awaiting_rendezvous
    running_condition = act(most).status.condition(C.RUNNING)
    assert running_condition is not None
    assert running_condition.message == "2 of 3 workers are ready for attempt 2"
    opened = act(meets.with_agents(AgentState.WAITING)).status
    assert opened.internal.rendezvous == Rendezvous(attempt=2, address="10.0.0.0")
    assert (opened.phase, opened.holds(C.RUNNING), opened.holds(C.RESTARTING)) == (Phase.RUNNING, True, False)
    restarted = opened.condition(C.RESTARTING)
    assert restarted is not None
    assert restarted.message == (
        "attempt 2 started after worker 1 of attempt 1 (pod train-worker-1-1 on node1) failed with exit code 1 (Error)"
        " (1 of 10 restarts used)"
    )
    assert act(replace(meets.with_agents(AgentState.RUNNING), status=stored(opened))).status == stored(opened)


def test_agent_ready_for_another_attempt_is_not_ready() -> None:
    meets = after(RUNS.reported_failed(1)).with_agents(AgentState.WAITING)
    early = {uid: replace(agent, attempt=1) for uid, agent in (meets.agents or {}).items()}
    assert act(replace(meets, agents=early)).status.awaiting_rendezvous


def test_disconnected_agent_is_not_ready() -> None:
    meets = after(RUNS.reported_failed(1)).with_agents(AgentState.WAITING)
    agents = dict(meets.agents or {})
    agents["pod-2-1"] = replace(agents["pod-2-1"], left_at=ago(1))
    assert act(replace(meets, agents=agents)).status.awaiting_rendezvous


def test_the_delay_is_kept_before_they_begin() -> None:
    meets = after(RUNS.with_status(backoff=Backoff(count=2)).reported_failed(1)).with_agents(AgentState.WAITING)
    waits = act(meets)
    assert (waits.status.awaiting_rendezvous, waits.requeue_after) == (True, 4.0)
    assert not plan(meets.snapshot, NOW + timedelta(seconds=4)).status.awaiting_rendezvous


def test_a_deleted_pod_is_replaced_alone() -> None:
    meets = after(RUNS.deleted(1))
    assert (made_in(meets), meets.status.internal.backoff.scope) == ([1, 2, 1], RestartScope.POD)
    restarting = meets.status.condition(C.RESTARTING)
    assert restarting is not None
    assert restarting.message.endswith(
        "; creating a new pod for worker 1 and restarting the other workers' processes in place as attempt 2"
    )
    # Without waiting for the old one to be gone.
    assert act(meets).actions == [CreateWorker(1, 2, 3)]


def test_replacement_joins_once_the_old_pod_ended() -> None:
    meets = after(RUNS.deleted(1))
    new = job(3).running(2).pods[1]
    joined = replace(meets, pods=(*meets.pods, new)).with_agents(AgentState.WAITING)
    waits = act(joined)
    assert (waits.status.awaiting_rendezvous, waits.actions) == (True, [])
    running_condition = waits.status.condition(C.RUNNING)
    assert running_condition is not None
    assert (
        running_condition.message
        == "3 of 3 workers are ready for attempt 2; waiting for pod train-worker-1-1 of an earlier attempt to terminate"
    )
    ended = tuple(replace(pod, ended=pod.uid == "pod-1-1") for pod in joined.pods)
    assert act(replace(joined, pods=ended)).status.internal.rendezvous == Rendezvous(attempt=2, address="10.0.0.0")
    # A pod on a node that is gone cannot be asked; what it cannot reach it cannot harm.
    silent = AgentView(1, AgentState.RUNNING, left_at=ago(9), vanished=True)
    lost = replace(joined, agents={**(joined.agents or {}), "pod-1-1": silent})
    assert not act(lost).status.awaiting_rendezvous


def test_sidecar_of_the_old_pod_delays_nothing() -> None:
    meets = after(RUNS.deleted(1))
    joined = replace(meets, pods=(*meets.pods, job(3).running(2).pods[1])).with_agents(AgentState.WAITING)
    runs_on = tuple(
        replace(pod, running=False, exit=Exit(NOW, 143, "Error", "")) if pod.uid == "pod-1-1" else pod
        for pod in joined.pods
    )
    assert act(replace(joined, pods=runs_on)).status.internal.rendezvous == Rendezvous(attempt=2, address="10.0.0.0")
    late = act(replace(joined, pods=runs_on).with_agents(AgentState.RUNNING, 0)).status.condition(C.RUNNING)
    assert late is not None
    assert late.message == "2 of 3 workers are ready for attempt 2"


def test_worker_0_is_found_where_it_is_now() -> None:
    meets = after(RUNS.deleted(0))
    new = replace(job(3).running(2).pods[0], ip="10.0.9.9")
    joined = replace(meets.gone(0), pods=(*(p for p in meets.pods if p.index), new)).with_agents(AgentState.WAITING)
    assert act(joined).status.internal.rendezvous == Rendezvous(attempt=2, address="10.0.9.9")


def test_a_lone_worker_finds_itself() -> None:
    alone = after(job(1).running().with_agents().reported_failed(0)).with_agents(AgentState.WAITING)
    assert act(alone).status.internal.rendezvous == Rendezvous(attempt=2, address="localhost")


def test_who_is_replaced_twice_counts_once() -> None:
    meets = after(RUNS.deleted(1))
    more = replace(meets, pods=(*meets.pods, job(3).running(2).pods[1])).with_agents(AgentState.WAITING)
    again = after(replace(more, status=act(more).status.evolve(backoff=Backoff())).deleted(1))
    assert again.status.internal.group == Group(
        created_in_attempt=1, size=3, replacements=[Replacement(worker=1, attempt=3)]
    )
    other = after(replace(more, status=more.status.evolve(backoff=Backoff())).deleted(2))
    assert made_in(other) == [1, 2, 3]


def test_replacement_that_has_not_started_is_awaited() -> None:
    meets = after(RUNS.deleted(1))
    placed = replace(job(3).created(2).pods[1], scheduled=True, node="node1")
    both = replace(meets, pods=(*meets.pods, placed)).deleted(2)
    assert made_in(after(both)) == [1, 2, 3]


def test_without_agents_all_pods_are_recreated() -> None:
    meets = after(job(3).running().failed(1))
    assert (meets.status.internal.group, meets.status.internal.backoff.scope) == (None, RestartScope.GROUP)


def test_worker_without_its_agent_is_replaced_too() -> None:
    assert made_in(
        after(job(3, template=SUPERVISED).running().with_agents(AgentState.RUNNING, 0, 1).reported_failed(1))
    ) == [
        1,
        1,
        2,
    ]


def test_one_that_has_done_its_work_is_replaced() -> None:
    assert made_in(after(RUNS.succeeded(0).reported_failed(1))) == [2, 1, 1]


@pytest.mark.parametrize(
    ("scope", "tries", "made", "words"),
    [
        (RestartScope.PROCESS, 1, [1, 1, 1], "restarting processes in place"),
        (RestartScope.PROCESS, 2, [1, 2, 1], "creating a new pod for worker 1"),
        (RestartScope.POD, 1, [1, 2, 1], "creating a new pod for worker 1"),
        (RestartScope.POD, 2, [2, 2, 2], "restarting all workers"),
        (RestartScope.GROUP, 7, [2, 2, 2], "restarting all workers"),
    ],
)
def test_what_failed_twice_makes_room_for_the_next(
    scope: RestartScope, tries: int, made: list[int], words: str
) -> None:
    failing = RUNS.with_status(backoff=Backoff(count=1, scope=scope, scope_attempts=tries)).reported_failed(1)
    decided = after(failing)
    assert made_in(decided) == made
    assert words in str(decided.status.condition(C.RESTARTING))


@pytest.mark.parametrize("further", ["an hour", "a step"])
def test_progress_begins_again_at_the_lowest(further: str) -> None:
    tried = RUNS.with_status(backoff=Backoff(count=5, scope=RestartScope.GROUP, scope_attempts=9))
    if further == "an hour":
        scene = tried.with_status(running_time=ago(3600)).reported_failed(1)
    else:
        budget = tried.status.internal.restart_budget.evolve(furthest_step=80)
        scene = tried.with_status(restart_budget=budget).reported_failed(1, step=81)
    status = after(scene).status
    assert (status.internal.backoff.scope, status.internal.backoff.scope_attempts, status.internal.backoff.count) == (
        RestartScope.PROCESS,
        1,
        1,
    )


@pytest.mark.parametrize(("lowest", "made"), [("Process", [1, 1, 1]), ("Pod", [1, 2, 1]), ("Group", [2, 2, 2])])
def test_the_user_says_where_to_begin(lowest: str, made: list[int]) -> None:
    assert (
        made_in(
            after(
                job(3, recovery={"minRestartScope": lowest}, template=SUPERVISED)
                .running()
                .with_agents()
                .reported_failed(1)
            )
        )
        == made
    )


@pytest.mark.parametrize(
    ("main", "made"),
    [
        ({"args": ["--port=$(MASTER_PORT)"]}, [2, 2, 2]),
        ({"command": ["sh", "-c", "echo $(TRAINYARD_ATTEMPT)"]}, [2, 2, 2]),
        ({"env": [{"name": "URL", "value": "tcp://$(MASTER_ADDR):1"}]}, [2, 2, 2]),
        ({"command": ["sh", "-c", "echo $MASTER_PORT $(hostname)"]}, [1, 1, 1]),
        ({"args": ["--rank=$(RANK)"]}, [1, 1, 1]),
    ],
)
def test_variables_set_by_the_kubelet_require_new_pods(main: dict[str, object], made: list[int]) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "trainer:1", **main}]}}
    assert made_in(after(job(3, template=template).running().with_agents().reported_failed(1))) == made


def test_workers_leave_an_avoided_node() -> None:
    rule = {"action": "RestartElsewhere", "exitCodes": [9]}
    scene = job(3, recovery={"rules": [rule]}, template=SUPERVISED).running().with_agents().pod(2, node="node1")
    assert made_in(after(scene.reported_failed(1, exit_code=9))) == [1, 2, 2]


def test_too_many_replacements_restart_the_group() -> None:
    many = [Replacement(worker=2 * index, attempt=2) for index in range(MAX_REPLACEMENTS)]
    scene = job(2 * MAX_REPLACEMENTS + 2, template=SUPERVISED).running()
    old = tuple(
        replace(pod, attempt=2) if pod.index < 2 * MAX_REPLACEMENTS and pod.index % 2 == 0 else pod
        for pod in scene.pods
    )
    grown = replace(
        scene.with_status(attempt=2, launched_attempt=2, group=Group(created_in_attempt=1, replacements=many)), pods=old
    )
    opened = grown.with_status(rendezvous=Rendezvous(attempt=2, address="10.0.0.0")).with_agents()
    assert after(opened.deleted(4)).status.internal.group is not None
    assert after(opened.deleted(2 * MAX_REPLACEMENTS)).status.internal.group is None


def test_workers_in_a_row_are_remembered_as_one() -> None:
    scene = job(5, template=SUPERVISED).running().with_agents()
    status = after(scene.deleted(1).deleted(2).deleted(4)).status
    assert status.internal.group == Group(
        created_in_attempt=1,
        size=5,
        replacements=[Replacement(worker=1, last_worker=2, attempt=2), Replacement(worker=4, attempt=2)],
    )
    assert [status.created_in_attempt(index) for index in range(5)] == [1, 2, 2, 1, 2]


def test_pod_replaced_long_ago_is_deleted() -> None:
    meets = after(RUNS.deleted(1))
    back = replace(meets, pods=tuple(replace(p, deletion_time=None, disruption=None) for p in meets.pods))
    assert DeletePod("train-worker-1-1", "pod-1-1", Reason.STALE_ATTEMPT) in act(back).actions


def test_stuck_processes_are_removed_with_their_pod() -> None:
    meets = after(RUNS.reported_failed(1)).with_agents(AgentState.WAITING, 0, 2)
    waits = act(meets)
    assert (waits.status.attempt, waits.requeue_after) == (2, 60.0)
    late = plan(meets.snapshot, NOW + timedelta(seconds=60))
    assert late.status.attempt == 3
    assert [late.status.created_in_attempt(index) for index in range(3)] == [1, 3, 1]
    assert "AgentNotReady" in late.events[0].note


@pytest.mark.parametrize(("grace", "seconds"), [(0, 60.0), (30, 60.0), (31, 61.0), (600, 630.0)])
def test_ranks_that_save_keep_their_pod(grace: int, seconds: float) -> None:
    runs = job(3, template=SUPERVISED, recovery={"restartGraceSeconds": grace}).running().with_agents()
    meets = after(runs.reported_failed(1)).with_agents(AgentState.WAITING, 0, 2)
    assert act(meets).requeue_after == seconds
    late = plan(meets.snapshot, NOW + timedelta(seconds=seconds))
    assert f"its processes did not exit within {seconds:.0f} seconds" in late.events[0].note


def test_a_replacement_may_take_its_time_to_start() -> None:
    meets = after(RUNS.deleted(1))
    new = job(3).running(2).pods[1]
    ended = tuple(replace(pod, ended=pod.uid == "pod-1-1") for pod in meets.pods)
    joins = replace(meets, pods=(*ended, new)).with_agents(AgentState.WAITING, 0, 2)
    assert plan(joins.snapshot, NOW + timedelta(minutes=20)).status.attempt == 2


def test_unreachable_replacement_times_out() -> None:
    meets = after(RUNS.deleted(1))
    new = replace(job(3).running(2).pods[1], running_since=ago(20))
    ended = tuple(replace(pod, ended=pod.uid == "pod-1-1") for pod in meets.pods)
    joins = replace(meets, pods=(*ended, new)).with_agents(AgentState.WAITING, 0, 2)
    assert act(joins).requeue_after == 40.0
    late = plan(joins.snapshot, NOW + timedelta(seconds=40))
    assert late.status.restarts.failures == 0
    assert [late.status.created_in_attempt(index) for index in range(3)] == [1, 3, 1]
    assert "did not connect" in late.events[0].note


def test_a_new_leader_gives_agents_time_to_call() -> None:
    scene = replace(
        job(3, template=SUPERVISED).running().with_agents(AgentState.RUNNING, 0).reported_failed(0),
        coordinator_up_since=ago(2),
    )
    assert (act(scene).status.attempt, act(scene).requeue_after) == (1, 4.0)
    assert made_in(after(replace(scene, coordinator_up_since=ago(6)))) == [1, 2, 2]


def begun(seconds_ago: float) -> Scene:
    """A worker was taken away, and the container of another has run for so long without a word of its agent."""
    scene = job(3, template=SUPERVISED).running().with_agents(AgentState.RUNNING, 0).deleted(2)
    return scene.pod(1, running_since=ago(seconds_ago))


def test_just_started_agent_gets_time_to_connect() -> None:
    waits = act(begun(2))
    assert (waits.status.attempt, waits.requeue_after) == (1, 4.0)
    assert made_in(after(begun(2).with_agents(AgentState.RUNNING, 0, 1))) == [1, 1, 2]
    assert made_in(after(begun(6))) == [1, 2, 2]


@pytest.mark.parametrize(
    "scene",
    [begun(-3600), begun(2).with_spec(recovery={"agent": "none"})],
    ids=["a node whose clock is ahead", "no agent to come"],
)
def test_no_worker_waits_for_an_agent(scene: Scene) -> None:
    assert made_in(after(scene))[1:] == [2, 2]


def test_no_worker_waits_for_a_missing_coordinator() -> None:
    meets = after(RUNS.reported_failed(1))
    decided = plan(replace(meets, agents=None).snapshot, NOW)
    assert (decided.status.attempt, decided.status.internal.group) == (3, None)
    assert "the coordinator is disabled" in decided.events[0].note


def test_a_suspension_in_between_ends_all() -> None:
    meets = after(RUNS.reported_failed(1)).with_spec(lifecycle={"suspend": True})
    stopped = after(meets)
    assert (stopped.status.attempt, stopped.status.internal.group, stopped.status.phase) == (3, None, Phase.SUSPENDED)
    assert len(act(stopped).actions) == 3


def test_hand_written_group_gets_new_pods_without_looping() -> None:
    absurd = Group(created_in_attempt=10**9, replacements=[Replacement(worker=10**6, attempt=10**9)])
    scene = RUNS.with_status(group=absurd, rendezvous=Rendezvous(attempt=1, address="x"))
    assert (act(scene).actions, act(scene).status.attempt) == ([], 1)


def test_log_of_the_worker_that_failed_is_kept() -> None:
    failed = after(job(3, recovery={"maxRestarts": 0}).running().with_agents().reported_failed(1))
    assert failed.status.phase is Phase.FAILED
    stopped = [action.name for action in act(failed).actions if isinstance(action, StopPod)]
    assert stopped == ["train-worker-0-1", "train-worker-2-1"]
    everything = failed.with_spec(lifecycle={"cleanPods": "All"})
    assert len(act(everything).actions) == 3


def test_failed_worker_with_running_sidecar_is_stopped() -> None:
    failed = after(job(3, recovery={"maxRestarts": 0}).running().failed(1).pod(1, phase="Running", ended=False))
    assert "train-worker-1-1" in [action.name for action in act(failed).actions if isinstance(action, StopPod)]


def test_recovered_worker_is_cleaned_like_all_others() -> None:
    meets = after(RUNS.reported_failed(1)).with_agents(AgentState.WAITING)
    over = replace(meets, status=act(meets).status).finished(C.FAILED)
    assert len(act(over).actions) == 3


def test_rendezvous_waits_for_a_pod_that_is_missing() -> None:
    meets = after(RUNS.disrupted(1)).with_agents(AgentState.WAITING, 0, 2)
    meets = replace(meets, pods=tuple(pod for pod in meets.pods if pod.index != 1))
    assert act(meets).status.awaiting_rendezvous
