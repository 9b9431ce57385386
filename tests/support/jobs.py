"""Builders of snapshots that read like a sentence: `job(3).running().failed(1, exit_code=2)`."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard.api.agent_protocol import AgentState
from trainyard.api.scheduling import GangScheduler
from trainyard.api.spec import TrainingJobSpec
from trainyard.api.status import Condition, ConditionType, TrainingJobStatus
from trainyard.domain.state.accelerators import visible_accelerators
from trainyard.domain.state.gang_schedulers import NO_GANG_SCHEDULERS, GangSchedulers
from trainyard.domain.state.object_names import worker_pod
from trainyard.domain.state.queue_choice import with_queue
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import AgentView, PodIssue, PodView
from trainyard.domain.state.workload import Queueing, WorkloadView, queue_request

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
UID = "job-uid"
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "trainer:1"}]}}
SUPERVISED = {"spec": {"containers": [{"name": "main", "image": "trainer:1", "command": ["python", "train.py"]}]}}


def ago(seconds: float) -> datetime:
    """Return the time so many seconds before NOW."""
    return NOW - timedelta(seconds=seconds)


def spec(replicas: int = 1, **fields: Any) -> TrainingJobSpec:
    """Return a spec from fields in the names of the API."""
    return TrainingJobSpec.model_validate({"template": TEMPLATE, "replicas": replicas, **fields})


def condition(kind: ConditionType, *, holds: bool = True, reason: str = "Because", since: datetime = NOW) -> Condition:
    """Return a condition that was stored earlier."""
    return Condition(
        type=kind,
        status="True" if holds else "False",
        reason=reason,
        message="stored earlier",
        last_transition_time=since,
    )


def worker(index: int, *, attempt: int = 1, workers: int = 3, **fields: Any) -> PodView:
    """Return a pod that the scheduler has not handled yet."""
    made: dict[str, Any] = {
        "uid": f"pod-{index}-{attempt}",
        "namespace": "lab",
        "name": worker_pod("train", index, attempt),
        "resource_version": 1,
        "job_uid": UID,
        "attempt": attempt,
        "index": index,
        "workers": workers,
        "phase": "Pending",
    }
    return PodView(**{**made, **fields})


@dataclass(frozen=True, slots=True)
class Scene:
    """A job with its pods at NOW. Each method returns another scene."""

    spec: TrainingJobSpec
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    pods: tuple[PodView, ...] = ()
    has_service: bool = False
    generation: int = 1
    deleting: bool = False
    agents: dict[str, AgentView] | None = None
    """None: there is no coordinator."""
    gang_schedulers: GangSchedulers = NO_GANG_SCHEDULERS
    coordinator_up_since: datetime = NOW - timedelta(seconds=300)
    queueing: Queueing | None = None
    """None: the operator was installed without queues."""

    @property
    def job(self) -> JobView:
        """The job without its pods."""
        made = JobView(UID, "ns", "train", self.generation, 1, self.spec, self.status, self.deleting)
        seen = visible_accelerators(self.spec.template["spec"]["containers"][0])
        return replace(made, accelerators=seen, queue=queue_request(self.spec.scheduling, {}))

    @property
    def snapshot(self) -> Snapshot:
        """The input of `plan`."""
        job = with_queue(self.job, self.gang_schedulers, kueue=self.queueing is not None)
        snapshot = Snapshot(
            job, self.pods, self.has_service, queueing=self.queueing, gang_schedulers=self.gang_schedulers
        )
        if self.agents is None:
            return snapshot
        return replace(snapshot, agent=True, agents=self.agents, coordinator_up_since=self.coordinator_up_since)

    @property
    def _members(self) -> tuple[int, ...]:
        return tuple(self.job.members(self.spec.replicas))

    # The job

    def with_spec(self, **fields: Any) -> "Scene":
        """Change the spec as a user does, which raises the generation."""
        changed = {**self.spec.model_dump(by_alias=True), **fields}
        return replace(self, spec=TrainingJobSpec.model_validate(changed), generation=self.generation + 1)

    def with_status(self, **fields: Any) -> "Scene":
        """Store these fields in the status."""
        return replace(self, status=self.status.evolve(**fields))

    def with_conditions(self, *conditions: Condition) -> "Scene":
        """Store these conditions."""
        kept = [c for c in self.status.conditions if c.type not in {new.type for new in conditions}]
        return self.with_status(conditions=[*kept, *conditions])

    def with_gang_schedulers(self, *found: GangScheduler, permitted: tuple[GangScheduler, ...] = ()) -> "Scene":
        """Let the cluster have these schedulers. `permitted`: what the chart permits, if that is something else."""
        return replace(self, gang_schedulers=GangSchedulers(permitted or found, frozenset(found)))

    def started(self, attempt: int = 1, seconds_ago: float = 300) -> "Scene":
        """Store a new attempt that has no pods yet."""
        begun = ago(seconds_ago)
        return self.with_status(
            attempt=attempt,
            launched_attempt=attempt - 1,
            active_since=begun,
            start_time=begun,
            attempt_start_time=begun,
        )

    def created(self, attempt: int = 1) -> "Scene":
        """Create the Service and all pods of an attempt, and store that they exist."""
        pods = tuple(worker(i, attempt=attempt, workers=self.spec.replicas) for i in self._members)
        scene = replace(self.started(attempt), pods=(*self.pods, *pods), has_service=True)
        return scene.with_status(launched_attempt=attempt)

    def running(self, attempt: int = 1, seconds_ago: float = 30) -> "Scene":
        """Run all workers of an attempt since so many seconds."""
        scene = self.created(attempt).with_status(running_time=ago(seconds_ago))
        for index in self._members:
            where = {"node": f"node{index}", "ip": f"10.0.0.{index}"}
            scene = scene.pod(index, scheduled=True, phase="Running", running=True, ready=True, **where)
        return scene

    def suspended(self) -> "Scene":
        """Store the suspension."""
        return self.with_conditions(condition(ConditionType.SUSPENDED)).with_status(active_since=None)

    def queued(self, *workloads: WorkloadView, **known: Any) -> "Scene":
        """Let the job wait in its queue. `known`: what else is known of the queue."""
        held = condition(ConditionType.QUEUED, reason="WaitingForQuota")
        return self.with_conditions(held).with_status(active_since=None).in_queue(*workloads, **known)

    def in_queue(self, *workloads: WorkloadView, **known: Any) -> "Scene":
        """Show the Workloads of the job. `known`: what else is known of the queue."""
        return replace(self, queueing=Queueing(workloads, **known))

    def finished(self, kind: ConditionType = ConditionType.COMPLETE, seconds_ago: float = 10) -> "Scene":
        """Store the completion."""
        return self.with_conditions(condition(kind)).with_status(completion_time=ago(seconds_ago), active_since=None)

    # Its pods, those of the current attempt

    def pod(self, index: int, **fields: Any) -> "Scene":
        """Change fields of a worker's pod."""

        def meant(pod: PodView) -> bool:
            return (pod.index, pod.attempt) == (index, self.status.created_in_attempt(index))

        return replace(self, pods=tuple(replace(p, **fields) if meant(p) else p for p in self.pods))

    def gone(self, *indexes: int) -> "Scene":
        """Remove pods."""
        kept = (p for p in self.pods if p.index not in indexes or p.attempt != self.status.created_in_attempt(p.index))
        return replace(self, pods=tuple(kept))

    def failed(
        self,
        index: int,
        *,
        exit_code: int = 1,
        seconds_ago: float = 10,
        reason: str = "Error",
        message: str = "",
        step: int | None = None,
        rank: int | None = None,
        **reported: Any,
    ) -> "Scene":
        """Exit a worker's main container with an error, after this step, because of this rank. `reported`: fields from its agent."""
        end = Exit(ago(seconds_ago), exit_code, reason, message, step=step, rank=rank, **reported)
        return self.pod(index, phase="Failed", ended=True, running=False, ready=False, exit=end)

    def succeeded(self, *indexes: int, seconds_ago: float = 10) -> "Scene":
        """Exit workers' main containers with code 0."""
        scene, end = self, Exit(ago(seconds_ago), 0, "Completed", "")
        for index in indexes:
            scene = scene.pod(index, phase="Succeeded", ended=True, running=False, ready=False, exit=end)
        return scene

    def deleted(self, index: int, *, seconds_ago: float = 5, grace: float = 30) -> "Scene":
        """Request the deletion of a pod."""
        asked = ago(seconds_ago)
        by = PodIssue("Deleted", "the pod was deleted")
        return self.pod(index, disrupted_at=asked, disruption=by, deletion_time=asked + timedelta(seconds=grace))

    def disrupted(self, index: int, *, seconds_ago: float = 5, reason: str = "PreemptionByScheduler") -> "Scene":
        """Set the condition DisruptionTarget of a pod."""
        return self.pod(index, disrupted_at=ago(seconds_ago), disruption=PodIssue(reason, "a pod of higher priority"))

    def rejected(self, index: int) -> "Scene":
        """Reject a pod by its kubelet."""
        why = PodIssue("UnexpectedAdmissionError", "no device is healthy")
        return self.pod(
            index, phase="Failed", ended=True, running=False, ready=False, scheduled=True, node="node9", issue=why
        )

    def waiting(self, index: int, reason: str, message: str = "", *, scheduled: bool = True) -> "Scene":
        """Let a pod wait for a reason of the scheduler or the node."""
        return self.pod(index, scheduled=scheduled, running=False, issue=PodIssue(reason, message), phase="Pending")

    # Its agents

    def with_agents(self, state: AgentState = AgentState.RUNNING, *indexes: int) -> "Scene":
        """Connect the agents of these workers, or of all, in the current attempt."""
        meant = indexes or self._members
        return self._with_agent_views({index: AgentView(self.status.attempt, state, since=ago(200)) for index in meant})

    def reported_failed(
        self,
        index: int,
        *,
        exit_code: int = 1,
        message: str = "",
        step: int | None = None,
        seconds_ago: float = 1,
        **reported: Any,
    ) -> "Scene":
        """Report a failed rank by its agent; the container still runs. `reported`: more fields of the report."""
        end = Exit(ago(seconds_ago), exit_code, "Error", message, step=step, rank=index, **reported)
        return self._with_agent_views({index: AgentView(self.status.attempt, AgentState.FAILED, end, since=ago(200))})

    def with_unreachable_node(self, index: int, seconds_ago: float = 10) -> "Scene":
        """Make the node of a worker unreachable since so many seconds."""
        agent = AgentView(self.status.attempt, AgentState.RUNNING, left_at=ago(seconds_ago), vanished=True)
        return self._with_agent_views({index: agent})

    def reported_finished(self, index: int, seconds_ago: float = 1) -> "Scene":
        """Report by the agent of a worker that it has finished."""
        return self._with_agent_views(
            {index: AgentView(self.status.attempt, AgentState.ENDED, reported_at=ago(seconds_ago))}
        )

    def disconnected(self, index: int, seconds_ago: float = 5, state: AgentState = AgentState.RUNNING) -> "Scene":
        """Close the connection of a worker's agent."""
        agent = AgentView(self.status.attempt, state, left_at=ago(seconds_ago))
        return self._with_agent_views({index: agent})

    def _with_agent_views(self, agents: dict[int, AgentView]) -> "Scene":
        uids = {pod.index: pod.uid for pod in self.pods if pod.attempt == self.status.created_in_attempt(pod.index)}
        known = {uids[index]: agent for index, agent in agents.items() if index in uids}
        return replace(self, agents={**(self.agents or {}), **known})


def job(replicas: int = 3, **fields: Any) -> Scene:
    """Return a job that the operator has not reconciled yet."""
    return Scene(spec(replicas, **fields))


def summarize(conditions: list[Condition]) -> dict[str, tuple[bool, str]]:
    """Return conditions as {type: (holds, reason)}."""
    return {c.type: (c.status == "True", c.reason) for c in conditions}


def because(reason: str, *, holds: bool = True) -> tuple[bool, str]:
    """Return one value of `summarize`."""
    return holds, reason


def stored(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return a status after a round trip through the API server."""
    return TrainingJobStatus.model_validate(status.dump())
