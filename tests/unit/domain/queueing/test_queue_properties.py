"""What holds for each state of a Workload and of the pods: quota is kept while a pod runs, and no pod starts without quota."""

from dataclasses import replace

from hypothesis import given, strategies as st

from tests.support.jobs import NOW, Scene, job
from tests.support.workloads import ADMISSION, QUEUE, Workload, workload
from trainyard.domain.decisions import ChangeWorkload, CreateWorker, CreateWorkload, DeleteWorkload
from trainyard.domain.plan import plan
from trainyard.domain.workload_changes import DropFinalizer, Finish, ReleaseQuota

KINDS = ("QuotaReserved", "Admitted", "Evicted", "Finished", "PodsReady")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    made = workload(active=draw(st.booleans()), deleting=draw(st.booleans()))
    for kind in KINDS:
        made = made.condition(kind, holds=draw(st.booleans()), reason=draw(st.sampled_from(["Preempted", "Started"])))
    return made


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    suspend = draw(st.booleans())
    scene = job(3, **QUEUE, lifecycle={"suspend": suspend}).running().with_status(admission=ADMISSION)
    seen = draw(st.lists(workloads(), max_size=1))
    scene = scene.in_queue(*(each.view for each in seen), offer=draw(st.sampled_from([None, ADMISSION])))
    rests = draw(st.sampled_from(["no", "queue", "user"]))
    if rests != "no":
        # The attempt has ended with the decision to rest; its pods have yet to end.
        known = scene.queueing
        scene = scene.queued() if rests == "queue" else scene.suspended()
        scene = replace(scene, queueing=known).with_status(attempt=2, admission=None, running_time=None)
    pods = (replace(pod, ended=draw(st.booleans())) for pod in scene.pods)
    return replace(scene, pods=tuple(pods) if draw(st.booleans()) else ())


@given(scenes())
def test_quota_is_kept_while_a_pod_runs(scene: Scene) -> None:
    actions = plan(scene.snapshot, NOW).actions
    gives: list[object] = [
        a
        for a in actions
        if isinstance(a, ChangeWorkload) and isinstance(a.change, ReleaseQuota | Finish | DropFinalizer)
    ]
    gives += [a for a in actions if isinstance(a, CreateWorkload | DeleteWorkload)]
    assert not gives or all(pod.ended for pod in scene.pods)


@given(scenes())
def test_no_pod_starts_without_quota(scene: Scene) -> None:
    starts = [a for a in plan(scene.snapshot, NOW).actions if isinstance(a, CreateWorker)]
    known = scene.queueing.workload if scene.queueing else None
    assert not starts or (known is not None and known.admitted and known.active)
    assert not starts or not scene.spec.lifecycle.suspend


@given(scenes())
def test_what_was_stored_is_decided_again(scene: Scene) -> None:
    decided = plan(scene.snapshot, NOW)
    assert plan(scene.snapshot, NOW) == decided
    after = replace(scene, status=decided.status)
    if decided.status.internal.admission is not None and scene.status.internal.admission is None:
        assert not decided.actions
        assert not after.status.queued
