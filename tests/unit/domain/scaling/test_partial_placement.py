"""A group that has a part of its nodes gives them back, waits, and tries again."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.elastic_jobs import ELASTIC, NO_CAPACITY, short_of_capacity
from tests.support.jobs import NOW, SUPERVISED, Scene, condition, job, stored, worker
from tests.support.reconciles import act, decided, names
from tests.support.workloads import ADMISSION, QUEUE, workload
from trainyard.api.internal_status import Releases
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.decisions import ChangeWorkload
from trainyard.domain.scaling.partial_placement import delay_seconds
from trainyard.domain.state.worker_views import PodIssue
from trainyard.domain.workload_changes import ReleaseQuota, ReportPodsReady

MINUTE = timedelta(minutes=1)


def half_placed(workers: int = 4, nodes: int = 2, **fields: object) -> Scene:
    """Return a job whose pods were created now, of which the first ones have got nodes and the others find none."""
    scene = job(workers, template=SUPERVISED, **fields).created().with_status(attempt_start_time=NOW, active_since=NOW)
    for index in scene.job.members(workers):
        placed = {"scheduled": True, "scheduled_at": NOW, "node": f"node{index}"}
        scene = scene.pod(index, **(placed if index < nodes else {"issue": NO_CAPACITY}))
    return scene


def test_group_releases_its_nodes_after_timeout() -> None:
    scene = half_placed()
    early = decided(scene, 299)
    assert (early.status.attempt, early.actions, early.requeue_after) == (1, [], 1)
    late = decided(scene, 300)
    assert [(event.type, event.reason, event.note) for event in late.events] == [
        (
            "Warning",
            Reason.PARTIALLY_SCHEDULED,
            (
                "2 of 4 workers held a node, and for 300 seconds (scheduling.partialTimeoutSeconds) there was none for the others"
                " (pod train-worker-2-1: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu);"
                f" deleting all pods, and creating them again as attempt 2, in {delay_seconds(scene.job, 1)} seconds"
            ),
        )
    ]
    assert (late.status.phase, late.status.attempt, late.status.restart_count) == (Phase.RESTARTING, 2, 0)
    assert late.status.restarts == scene.status.restarts


def test_released_pods_return_after_delay() -> None:
    scene = act(half_placed(), 300)
    delay = delay_seconds(scene.job, 1)
    scene = act(scene, 300)
    assert names(scene) == []
    assert names(act(scene, 300 + delay - 1)) == []
    scene = act(scene, 300 + delay)
    assert names(scene) == ["0-2", "1-2", "2-2", "3-2"]


class TestInQueueOfKueue:
    """What Kueue has admitted stays the job's: only Kueue takes quota back."""

    @staticmethod
    def admitted(**ready: Any) -> Scene:
        scene = half_placed(**QUEUE)
        counts = ADMISSION.evolve(pods=[ADMISSION.pods[0].evolve(count=4)])
        seen = workload(4, scene).admitted().condition("PodsReady", **ready) if ready else workload(4, scene).admitted()
        return scene.with_status(admission=counts).in_queue(seen.view)

    def test_quota_stays_through_a_release(self) -> None:
        scene = self.admitted(holds=False, reason="WaitForStart")
        delay = delay_seconds(scene.job, 1)
        late = decided(scene, 300)
        assert [event.reason for event in late.events] == [Reason.PARTIALLY_SCHEDULED]
        # `act` fails at each action on a Workload.
        for seconds in (300, 300, 300 + delay - 1):
            scene = act(scene, seconds)
            assert (scene.status.queued, scene.status.internal.admission is None) == (False, False)
        assert names(scene) == []
        assert names(act(scene, 300 + delay)) == ["0-2", "1-2", "2-2", "3-2"]

    @pytest.mark.parametrize(
        ("ready", "reason"),
        [({}, "WaitForStart"), ({"holds": True, "reason": "Started"}, "WaitForRecovery")],
    )
    def test_kueue_knows_that_pods_are_missing(self, ready: Any, reason: str) -> None:
        scene = self.admitted(**ready)
        released = scene.with_status(**dict(decided(scene, 300).status))
        (change,) = [each for each in decided(released, 300).actions if isinstance(each, ChangeWorkload)]
        assert isinstance(change.change, ReportPodsReady)
        assert (change.change.ready, change.change.reason) == (False, reason)

    def test_eviction_in_the_delay_gives_quota_back(self) -> None:
        scene = act(act(self.admitted(holds=False, reason="WaitForStart"), 300), 300)
        late = workload(4, scene).admitted().evicted("PodsReadyTimeout", "too late").view
        held = act(scene.in_queue(late), 310)
        assert (held.status.queued, held.status.internal.admission, held.status.attempt) == (True, None, 2)
        (change,) = decided(held, 310).actions
        assert isinstance(change, ChangeWorkload)
        assert change.change == ReleaseQuota("PodsReadyTimeout", "too late", requeued=False)


def test_delays_grow_and_differ_between_jobs() -> None:
    one = job(4).job
    jobs = [replace(one, uid=f"job-{number}") for number in range(200)]
    for count, longest in enumerate((45, 90, 180, 360, 720, 720, 720), 1):
        delays = [delay_seconds(each, count) for each in jobs]
        assert longest // 3 <= min(delays) < 0.4 * longest
        assert 0.95 * longest < max(delays) <= longest
    assert delay_seconds(one, 10**12) <= 720


def test_next_release_waits_longer() -> None:
    scene = half_placed().with_status(releases=Releases(count=3, since=NOW - 20 * MINUTE))
    after = decided(scene, 300).status.internal
    assert after.releases == Releases(count=4, since=NOW - 20 * MINUTE)
    assert after.backoff.not_before == NOW + timedelta(seconds=300 + delay_seconds(scene.job, 4))


def test_each_new_node_restarts_the_timeout() -> None:
    scene = half_placed().pod(1, scheduled_at=NOW + timedelta(seconds=200))
    assert decided(scene, 499).status.attempt == 1
    assert decided(scene, 500).status.attempt == 2


def test_backoff_is_no_part_of_timeout() -> None:
    scene = half_placed()
    backoff = scene.status.internal.backoff.evolve(not_before=NOW + timedelta(seconds=100))
    assert decided(scene.with_status(backoff=backoff), 399).status.attempt == 1
    assert decided(scene.with_status(backoff=backoff), 400).status.attempt == 2


@pytest.mark.parametrize("nodes", [0, 4], ids=["none", "all"])
def test_groups_with_no_or_all_nodes_wait(nodes: int) -> None:
    assert decided(half_placed(nodes=nodes), 86_400).status.attempt == 1


def test_zero_keeps_the_pods() -> None:
    scene = half_placed(scheduling={"partialTimeoutSeconds": 0})
    assert (decided(scene, 86_400).status.attempt, decided(scene).requeue_after) == (1, None)


@pytest.mark.parametrize("issue", [None, PodIssue("SchedulingGated", "a gate")], ids=["new", "gated"])
def test_waits_until_scheduler_has_handled_all(issue: PodIssue | None) -> None:
    assert decided(half_placed().pod(3, issue=issue), 600).status.attempt == 1


def test_quota_that_refuses_a_part_releases() -> None:
    refused = condition(C.RUNNING, holds=False, reason=Reason.QUOTA_EXCEEDED)
    scene = half_placed().gone(2, 3).with_status(launched_attempt=0)
    assert decided(scene, 600).status.attempt == 1, "it is not known why the pods are not there"
    assert decided(scene.with_conditions(refused), 600).status.attempt == 2


def test_own_terminating_pods_may_fill_the_quota() -> None:
    refused = condition(C.RUNNING, holds=False, reason=Reason.QUOTA_EXCEEDED)
    scene = half_placed().gone(3).with_status(launched_attempt=0).with_conditions(refused)
    old = worker(3, attempt=1, scheduled=True, node="lost", deletion_time=NOW)
    scene = replace(
        scene.with_status(attempt=2, launched_attempt=1), pods=(old, *(replace(p, attempt=2) for p in scene.pods))
    )
    scene = scene.pod(2, issue=NO_CAPACITY)
    assert decided(scene, 600).status.attempt == 2
    assert decided(replace(scene, pods=scene.pods[1:]), 600).status.attempt == 3


@pytest.mark.parametrize("framework", ["none", "ray"])
def test_workers_that_train_alone_keep_nodes(framework: str) -> None:
    roles = [{"name": "head"}] if framework == "ray" else []
    scene = half_placed(framework=framework, roles=roles)
    assert decided(scene, 86_400).status.attempt == 1
    asked = half_placed(framework=framework, roles=roles, scheduling={"partialTimeoutSeconds": 60})
    assert decided(asked, 60).status.attempt == 2


def test_running_group_keeps_nodes_of_its_replacement() -> None:
    scene = half_placed().with_status(running_time=NOW)
    assert decided(scene, 600).status.attempt == 1


def test_recovering_group_gives_back_kept_pods() -> None:
    scene = short_of_capacity().with_spec(elastic=None)
    assert decided(scene, 299).status.attempt == 2
    scene = act(scene, 300)
    assert (scene.status.attempt, scene.status.internal.group) == (3, None)
    assert names(act(scene, 300)) == []


def test_elastic_group_shrinks_and_keeps_its_nodes() -> None:
    scene = half_placed(elastic={**ELASTIC, "shrinkAfterSeconds": 600}).with_agents()
    assert decided(scene, 599).status.attempt == 1
    assert decided(scene, 600).events[0].reason is Reason.INSUFFICIENT_CAPACITY


def test_elastic_group_below_its_minimum_releases() -> None:
    scene = half_placed(elastic={**ELASTIC, "minReplicas": 3}).with_agents()
    assert decided(scene, 300).events[0].reason is Reason.PARTIALLY_SCHEDULED


def test_missing_server_releases_elastic_workers() -> None:
    roles = [{"name": "chief"}, {"name": "ps"}]
    fields = {
        "framework": "tensorflow",
        "roles": roles,
        "elastic": ELASTIC,
        "scheduling": {"partialTimeoutSeconds": 300},
    }
    scene = job(2, template=SUPERVISED, **fields).created().with_status(attempt_start_time=NOW)
    chief, server = scene.job.role_members
    for index in (0, 1, chief):
        scene = scene.pod(index, scheduled=True, scheduled_at=NOW, node=f"node{index}")
    scene = scene.pod(server, issue=NO_CAPACITY).with_agents()
    assert "3 of 4 members held a node" in decided(scene, 300).events[0].note


def test_start_deadline_counts_through_releases() -> None:
    scene = half_placed(lifecycle={"startupDeadlineSeconds": 1000})
    scene = act(act(scene, 300), 300)
    delay = delay_seconds(scene.job, 1)
    scene = act(scene, 300 + delay)
    assert decided(scene, 999).status.phase is Phase.RESTARTING
    ended = decided(scene, 1000)
    assert ended.status.phase is Phase.FAILED
    assert ended.events[0].reason is Reason.STARTUP_DEADLINE_EXCEEDED


def test_running_group_forgets_its_releases() -> None:
    scene = job(2).running().with_status(running_time=None, releases=Releases(count=3, since=NOW))
    assert decided(scene).status.internal.releases is None


def test_suspension_forgets_releases() -> None:
    scene = act(half_placed(), 300).with_spec(lifecycle={"suspend": True})
    assert decided(scene, 301).status.internal.releases is None


def test_release_of_a_set_back_clock_ends() -> None:
    future = NOW + timedelta(days=400)
    scene = half_placed().with_status(releases=Releases(count=1, since=future))
    scene = scene.with_status(backoff=scene.status.internal.backoff.evolve(not_before=future))
    after = decided(scene).status.internal
    assert after.releases == Releases(count=1, since=NOW)
    assert after.backoff.not_before == NOW + timedelta(seconds=45)


def test_release_survives_a_killed_operator() -> None:
    scene = half_placed()
    made = decided(scene, 300)
    assert made.actions == (), "the decision is stored before a pod is deleted"
    after = replace(scene, status=stored(made.status))
    assert decided(after, 301).status.attempt == 2
    assert len(decided(after, 301).actions) == 4
