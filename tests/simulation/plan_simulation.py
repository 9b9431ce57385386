"""A cluster in memory: pods with phases, kubelets, nodes that are lost, and an operator that can die between two writes.

It keeps its own ledger of what really happened to each attempt, so that the status can be held against it.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tests.support.condition_messages import unreadable_messages
from tests.support.jobs import NOW, UID, spec, stored
from trainyard.api.spec import TrainingJobSpec
from trainyard.api.status import ConditionType as C, TrainingJobStatus
from trainyard.domain.decisions import (
    Action,
    ChangeWorkload,
    CreatePodGroup,
    CreateService,
    CreateWorker,
    CreateWorkload,
    DeleteJob,
    DeletePod,
    DeletePodGroups,
    DeleteWorkload,
    Plan,
    RemovePod,
    StopPod,
)
from trainyard.domain.plan import plan
from trainyard.domain.state.gang_schedulers import NO_GANG_SCHEDULERS, GangSchedulers
from trainyard.domain.state.object_names import worker_pod
from trainyard.domain.state.observed_exits import container_exit
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.worker_views import PodIssue, PodView

NODES = ("node0", "node1", "node2")
GRACE = timedelta(seconds=30)
DELETED = PodIssue("Deleted", "the pod was deleted")
TERMINAL = {"Succeeded", "Failed"}


@dataclass(slots=True)
class Attempt:
    """What really happened to an attempt."""

    failed: bool = False
    """A worker ended with an error of its own."""
    struck: bool = False
    """A worker was taken away."""
    unwished: bool = False
    """The user requested something else meanwhile."""


@dataclass(slots=True)
class PlanSimulation:
    """All that exists, what the operator has seen of it, and the ledger."""

    spec: TrainingJobSpec = field(default_factory=spec)
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    pods: dict[str, PodView] = field(default_factory=dict)
    service: bool = False
    now: datetime = NOW
    generation: int = 1
    job_version: int = 1
    lost: set[str] = field(default_factory=set)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    wake_at: datetime | None = NOW
    dirty: bool = True
    """Whether anything happened that the operator receives as an event."""
    seen: Snapshot = field(init=False)
    own_write: bool = False
    """Whether the operator wrote something that it has not seen yet."""
    made: int = 0
    gang_schedulers: GangSchedulers = NO_GANG_SCHEDULERS
    pod_groups: dict[int, int] = field(default_factory=dict)
    """How many members each PodGroup waits for, by the attempt in its name."""

    def __post_init__(self) -> None:
        self.observe()

    # What the cluster does

    def tick(self, seconds: float) -> None:
        """Time passes; nodes that are there end the pods that have to go."""
        self.now += timedelta(seconds=seconds)
        for pod in [*self.pods.values()]:
            if pod.deletion_time and pod.deletion_time <= self.now and pod.node not in self.lost:
                self.remove(pod)

    def come_back(self) -> None:
        """All nodes are there again, and first end what had to go while they were away.

        The operator may have given such pods up by then. Its new ones have another rendezvous, so the two never meet.
        """
        self.lost.clear()
        for pod in [*self.pods.values()]:
            self.put(replace(pod, node_lost_at=None))
        self.tick(0)

    def work(self) -> None:
        """Scheduler and kubelets do what they have to."""
        for pod in [*self.pods.values()]:
            if pod.deletion_time and pod.node not in self.lost:
                self.remove(pod)
            elif pod.deletion_time or pod.phase in TERMINAL or pod.exit or pod.node in self.lost:
                continue
            elif not pod.scheduled:
                there = [n for n in NODES if n not in self.lost]
                self.put(replace(pod, scheduled=True, node=there[pod.index % len(there)]))
            elif not pod.running:
                self.put(replace(pod, running=True, ready=True, phase="Running"))

    def put(self, pod: PodView) -> None:
        """Store a pod."""
        if self.pods.get(pod.uid) != pod:
            self.pods[pod.uid] = pod
            self.dirty = True

    def remove(self, pod: PodView) -> None:
        """A pod is no more."""
        del self.pods[pod.uid]
        self.dirty = True

    def ask_to_go(self, pod: PodView, by: PodIssue) -> None:
        """A graceful deletion: at once for what does not run any more."""
        if pod.deletion_time:
            return
        if pod.node not in self.lost and (pod.phase in TERMINAL or not pod.scheduled):
            self.remove(pod)
            return
        self.put(replace(pod, disrupted_at=pod.disrupted_at or self.now, disruption=by, deletion_time=self.now + GRACE))

    def end(self, pod: PodView, code: int, message: str) -> None:
        """The main container ends; after it was asked to go that is no fault of its own."""
        if code and not pod.disruption:
            self.attempt(pod.attempt).failed = True
        phase = "Failed" if code else "Succeeded"
        end = container_exit(self.now, code, message, "Error" if code else "Completed")
        self.put(replace(pod, running=False, ready=False, ended=True, phase=phase, exit=end))

    def attempt(self, number: int) -> Attempt:
        """The ledger's page of an attempt."""
        return self.attempts.setdefault(number, Attempt())

    def change_spec(self, **fields: object) -> None:
        """The user changes the spec, which disturbs the attempt of the moment."""
        changed = TrainingJobSpec.model_validate({**self.spec.model_dump(by_alias=True), **fields})
        if changed != self.spec:
            self.spec, self.generation = changed, self.generation + 1
            self.job_version += 1
            self.attempt(self.status.attempt).unwished = True
            self.dirty = True

    # What the operator does

    def observe(self) -> None:
        """All watch events have been delivered."""
        job = JobView(UID, "ns", "train", self.generation, self.job_version, self.spec, self.status)
        self.seen = Snapshot(job, tuple(self.pods.values()), self.service, gang_schedulers=self.gang_schedulers)
        self.own_write = False

    def decide(self) -> Plan:
        """The plan, which must be the same each time it is made, and must not act on what is not stored."""
        decided = plan(self.seen, self.now)
        assert decided == plan(self.seen, self.now)
        assert decided.requeue_after is None or decided.requeue_after > 0
        before = self.seen.job.status
        if decided.status.attempt != before.attempt or decided.status.finished != before.finished:
            assert not decided.actions
        return decided

    def run_pass(self, survives: int | None = None) -> Plan | None:
        """One pass, of which only the first `survives` writes happen before the operator dies and is restarted."""
        if self.own_write:
            return None
        self.dirty = False
        decided = self.decide()
        self.wake_at = None if decided.requeue_after is None else self.now + timedelta(seconds=decided.requeue_after)
        for action in decided.actions[:survives]:
            self.carry_out(action)
        if survives is None or survives > len(decided.actions):
            self.store(decided)
        if survives is not None:
            self.observe()
            self.dirty = True
        return decided

    def carry_out(self, action: Action) -> None:
        """One write, as the API server takes it."""
        self.own_write = self.dirty = True
        match action:
            case CreateService():
                assert not self.status.finished
                self.service = True
            case CreatePodGroup():
                group = self.seen.job.status.pod_group
                assert group is not None
                assert not self.status.finished
                self.pod_groups.setdefault(group.created_in_attempt, group.min_member)
            case DeletePodGroups():
                self.pod_groups.clear()
            case CreateWorker(index, attempt, workers):
                self.create(index, attempt, workers)
            case DeletePod(_, uid):
                if pod := self.pods.get(uid):
                    self.ask_to_go(pod, DELETED)
            case StopPod(_, uid):
                self.stop(uid)
            case RemovePod(_, uid):
                self.remove_by_force(uid)
            case DeleteJob() | CreateWorkload() | ChangeWorkload() | DeleteWorkload():
                raise AssertionError("no job here has a time to live, or a queue")

    def remove_by_force(self, uid: str) -> None:
        """A pod goes of which nothing is needed and whose node does not end it."""
        pod = self.pods.get(uid)
        if pod is None:
            return  # decided on a view from before: the server answers that the pod is not found
        assert pod.node in self.lost
        assert pod.deletion_time
        assert self.now - pod.deletion_time >= timedelta(seconds=300)
        assert self.status.finished or self.status.suspended or pod.attempt < self.status.attempt
        self.remove(pod)

    def stop(self, uid: str) -> None:
        """Ask the pod's node to stop its containers; a lost node does not."""
        assert self.status.holds(C.FAILED), "only a failed job keeps the pods of workers that run"
        if (pod := self.pods.get(uid)) and not pod.ended:
            self.put(replace(pod, stop_requested=True))
            if pod.node not in self.lost:
                self.end(self.pods[uid], 143, "")

    def create(self, index: int, attempt: int, workers: int) -> None:
        """A new pod, before which all that could get in its way must be gone."""
        assert not self.status.finished
        assert not self.status.suspended
        assert attempt == self.status.attempt
        if self.gang_schedulers.found:
            assert self.pod_groups == {attempt: workers}, "it waits for its own gang, and no other is left"
        in_the_way = [p for p in self.pods.values() if p.attempt < attempt and p.node not in self.lost]
        assert not in_the_way
        name = worker_pod("train", index, attempt)
        if any(p.name == name for p in self.pods.values()):
            return
        self.made += 1
        self.put(PodView(f"uid{self.made}", "lab", name, 1, UID, attempt, index, workers, "Pending"))

    def store(self, decided: Plan) -> None:
        """The status write: refused where somebody changed the job since it was seen."""
        if self.job_version != self.seen.job.resource_version:
            self.dirty = True
            return
        before, after = self.status, stored(decided.status)
        if before == after:
            return
        assert after == decided.status
        self.compare(before, after)
        self.status = after
        self.job_version += 1
        self.own_write = self.dirty = True

    def compare(self, before: TrainingJobStatus, after: TrainingJobStatus) -> None:
        """What must hold from one status to the next."""
        assert after.attempt >= before.attempt
        assert unreadable_messages(after) == []
        assert after.internal.launched_attempt <= after.attempt
        assert after.restarts.failures <= self.spec.recovery.max_restarts + 1
        for old in before.conditions:
            new = after.condition(C(old.type))
            assert new is not None
            assert (new.last_transition_time != old.last_transition_time) <= (new.status != old.status)
        if before.finished:
            assert [c for c in after.conditions if c.type in {C.COMPLETE, C.FAILED}] == [
                c for c in before.conditions if c.type in {C.COMPLETE, C.FAILED}
            ]
            assert after.attempt == before.attempt
        charged = after.restarts.failures - before.restarts.failures
        over = after.attempt != before.attempt or after.holds(C.FAILED) != before.holds(C.FAILED)
        truth = self.attempt(before.attempt)
        assert charged in ({0, 1} if over and truth.failed else {0})
        if over and truth.failed and not truth.struck and not truth.unwished:
            assert charged == 1
        taken = after.restarts.disruptions - before.restarts.disruptions
        assert taken in ({0, 1} if over and truth.struck and not charged else {0})
