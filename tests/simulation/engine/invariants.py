"""What must hold of each single write, whatever has gone wrong before it. Sees all writes in their order, makes none."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.simulation.engine import stored_objects
from tests.simulation.engine.attempt_history import AttemptHistory
from tests.simulation.engine.server import OPERATOR, Call, Server
from tests.simulation.engine.stored_objects import JOBS_PLACE, PODS_PLACE, SERVICES_PLACE
from tests.support.condition_messages import unreadable_messages
from tests.support.fake_cluster import Change, Json
from tests.support.phase_transitions import objection
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, TrainingJobStatus
from trainyard.kube.lease import LEASES

BYSTANDERS = frozenset({"events", "leases"})
NO_FAULT_OF_WORKERS = frozenset(
    {Reason.DEADLINE_EXCEEDED, Reason.STARTUP_DEADLINE_EXCEEDED, Reason.INVALID_TEMPLATE},
)
HISTORY_WRITES = 60
CLOCKS_DIFFER = 6
"""Seconds between what the operator takes for the time and the API server's clock, at most."""
DEADLINES: Mapping[str, str] = {
    Reason.DEADLINE_EXCEEDED: "activeDeadlineSeconds",
    Reason.STARTUP_DEADLINE_EXCEEDED: "startupDeadlineSeconds",
}
FORCED_AFTER = 300
"""`recovery.forceDeleteAfterSeconds`, the default."""


class InvariantError(AssertionError):
    """Something happened that must never happen."""


@dataclass(slots=True)
class Invariants:
    """The judge. `on_change` receives each write before any client does."""

    server: Server
    ledger: AttemptHistory
    lost: set[str]
    """The nodes that are lost at the moment."""
    elected: bool
    """Whether there are several processes, of which only the holder of the lease may write."""
    given_up: set[str] = field(default_factory=set)
    """UIDs of pods that were deleted while their node was lost: no job waits for them."""
    writes: int = 0
    """The operator's, events included."""
    _statuses: dict[str, TrainingJobStatus] = field(default_factory=dict)
    _made_at: dict[str, datetime] = field(default_factory=dict)
    """When each job was created."""
    history: deque[tuple[str, Change]] = field(default_factory=lambda: deque(maxlen=HISTORY_WRITES))

    def on_change(self, change: Change) -> None:
        """Hold a write against the laws."""
        actor = self.server.actor
        self.history.append((actor, change))
        if actor == OPERATOR and change.place[2] != "leases":
            self.writes += 1
            holder = self.server.cluster.held(LEASES)[0]["spec"]["holderIdentity"] if self.elected else None
            self._law(holder in {None, self.server.writer}, f"{self.server.writer} writes, and {holder} leads")
        if change.place[2] in BYSTANDERS:
            return
        self.ledger.note(change, actor)
        if change.place == JOBS_PLACE and change.old is None and change.new:
            self._made_at[stored_objects.uid(change.new)] = self.now()
        if actor == OPERATOR:
            self._operator(change)
        elif (
            change.place == JOBS_PLACE
            and change.old
            and change.new
            and stored_objects.loses_status(change.old, change.new)
        ):
            uid = stored_objects.uid(change.new)
            self._statuses.pop(uid, None)
            self.ledger.blur(uid, max((stored_objects.attempt(pod) for pod in self.pods(uid)), default=1))

    def on_repeat(self, call: Call) -> None:
        """It asks again for what it has: nothing comes of it but work for the API server."""
        self._law(holds=False, broken=f"{call.session.name} creates what was reported to it as created: {call.verb}")

    # What the operator writes.

    def _operator(self, change: Change) -> None:
        match change.place, change.old, change.new:
            case place, None, dict() as made if place == PODS_PLACE:
                self._creates(made)
            case place, dict() as pod, dict() as new if place == PODS_PLACE and not stored_objects.going(new):
                self._stops(pod, new)
            case place, dict() as pod, _ if place == PODS_PLACE:
                again = change.new is not None and stored_objects.going(pod)
                self._law(not again, "it changes a pod that is being deleted")
                forced = (
                    change.new is None
                    and stored_objects.going(pod)
                    and stored_objects.node(pod)
                    and not stored_objects.ended(pod)
                )
                self._deletes(pod, forced=bool(forced))
            case place, None, dict() as made if place == SERVICES_PLACE:
                job = self.job(stored_objects.owner(made))
                self._law(job is None or not stored_objects.finished(job), "a Service is made for a finished job")
                self._law(
                    job is None or not stored_objects.foreign(job), "a Service is made for another controller's job"
                )
            case place, dict() as old, dict() as new if place == JOBS_PLACE:
                self._law(self._all_but_status(old) == self._all_but_status(new), "it writes more than the status")
                self._law(not stored_objects.foreign(old), "it writes to another controller's job")
                self._moves(old, new)
            case place, dict() as old, None if place == JOBS_PLACE:
                self._expires(old)
            case _:
                self._law(holds=False, broken="it makes a write that it has no business with")

    def _creates(self, pod: Json) -> None:
        job, attempt = self.job(stored_objects.owner(pod)), stored_objects.attempt(pod)
        others = [p for p in self.pods(stored_objects.owner(pod)) if p is not pod and self._lives(p)]
        ranks = {stored_objects.rank(p) for p in others if stored_objects.attempt(p) == attempt}
        self._law(stored_objects.rank(pod) not in ranks, "a rank lives twice in one attempt")
        self._law(all(stored_objects.attempt(p) == attempt for p in others), "two attempts live side by side")
        mates = [p for p in self.pods(stored_objects.owner(pod)) if stored_objects.attempt(p) == attempt]
        size = max(stored_objects.workers(p) for p in mates)
        self._law(len([p for p in mates if self._lives(p)]) <= size, "more live pods than the group has workers")
        self._law(stored_objects.rank(pod) < size, "a rank beyond the size of the group")
        if job is None:
            return  # deleted a moment ago: the pod is collected
        self._law(not stored_objects.foreign(job), "a pod is made for another controller's job")
        if not job.get("status"):
            return  # not written yet, or lost a moment ago
        self._law(not stored_objects.finished(job), "a pod is made for a finished job")
        self._law(not stored_objects.holds(job, "Suspended"), "a pod is made for a suspended job")
        self._law(
            attempt == stored_objects.stored_attempt(job), "a pod is made for an attempt that is not the stored one"
        )
        launched = job["status"].get("internal", {}).get("launchedAttempt", 0)
        self._law(launched < attempt, "a pod is made for an attempt that was complete already")

    def _stops(self, pod: Json, new: Json) -> None:
        """A pod of a failed job gets a deadline: its node ends it, and it stays for its log."""
        spec = {**pod["spec"], "activeDeadlineSeconds": 1}
        self._law(new["spec"] == spec and spec != pod["spec"], "it changes more of a pod than its deadline")
        job = self.job(stored_objects.owner(pod))
        if job is None or not job.get("status"):
            return  # deleted, or its status lost, a moment ago
        kept = stored_objects.lifecycle(job, "cleanPods") not in {"All", "None"}
        self._law(kept and stored_objects.holds(job, "Failed"), "a pod is stopped that the job needs")

    def _deletes(self, pod: Json, *, forced: bool) -> None:
        job = self.job(stored_objects.owner(pod))
        if forced:
            gone = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
            late = self.now() >= gone + timedelta(seconds=FORCED_AFTER - CLOCKS_DIFFER)
            self._law(late and stored_objects.uid(pod) in self.given_up, "a pod is removed that its node may yet end")
        if job is None or not job.get("status"):
            return  # deleted, or its status lost, a moment ago
        old = stored_objects.attempt(pod) < stored_objects.stored_attempt(job)
        over = stored_objects.finished(job) and (forced or stored_objects.lifecycle(job, "cleanPods") != "None")
        # A job that waits for its pods to be gone needs none of them.
        over = over or (forced and stored_objects.going(job))
        self._law(old or over or stored_objects.holds(job, "Suspended"), "a pod is deleted that the job needs")

    def _expires(self, job: Json) -> None:
        if not job.get("status"):
            return  # lost a moment ago
        ttl, ended = stored_objects.lifecycle(job, "ttlSecondsAfterFinished"), job["status"].get("completionTime")
        self._law(isinstance(ttl, int) and ended is not None, "a job is deleted that was not to be deleted")
        assert isinstance(ttl, int)
        past = self.now() >= datetime.fromisoformat(ended) + timedelta(seconds=ttl - CLOCKS_DIFFER)
        self._law(stored_objects.finished(job) and past, "a job is deleted before its time")

    def _moves(self, old: Json, new: Json) -> None:
        uid = stored_objects.uid(new)
        # No other client writes a status here, so what was written last is what was stored before.
        before = self._statuses.get(uid) or TrainingJobStatus.model_validate(old.get("status") or {})
        after = self._statuses[uid] = TrainingJobStatus.model_validate(new["status"])
        if wrong := objection(before, after):
            self._law(holds=False, broken=wrong)
        self._contradicts(after)
        failed = after.condition(C.FAILED)
        if failed and not before.holds(C.FAILED) and (deadline := DEADLINES.get(failed.reason)):
            due = self._made_at[uid] + timedelta(seconds=new["spec"]["lifecycle"][deadline] - CLOCKS_DIFFER)
            self._law(self.now() >= due, "a deadline is past before its time")
        for condition in before.conditions:
            condition_after = after.condition(C(condition.type))
            self._law(condition_after is not None, f"the condition {condition.type} is taken back")
            moved = (
                condition_after is not None and condition_after.last_transition_time != condition.last_transition_time
            )
            self._law(
                not moved or condition_after is None or condition_after.status != condition.status,
                "a time moves without its answer",
            )
        self._counts(uid, before, after)

    def _contradicts(self, status: TrainingJobStatus) -> None:
        broken = "the status contradicts itself"
        self._law(unreadable_messages(status) == [], f"unreadable conditions: {unreadable_messages(status)}")
        self._law(not (status.holds(C.COMPLETE) and status.holds(C.FAILED)), broken)
        self._law((status.completion_time is not None) is status.finished, broken)
        self._law(not (status.holds(C.RUNNING) and (status.finished or status.suspended)), broken)

    def _counts(self, job: str, before: TrainingJobStatus, after: TrainingJobStatus) -> None:
        """A failure is counted once, at the end of the attempt that it ended; so is a disruption."""
        page = self.ledger.page(job, before.attempt)
        over = after.attempt != before.attempt or after.holds(C.FAILED) != before.holds(C.FAILED)
        charged = after.restarts.failures - before.restarts.failures
        taken = after.restarts.disruptions - before.restarts.disruptions
        self._law(not charged or page.failed or page.doubtful, "a failure is counted that never was")
        self._law(not taken or page.struck or page.doubtful, "a disruption is counted that never was")
        failed = after.condition(C.FAILED)
        excused = failed is not None and failed.reason in NO_FAULT_OF_WORKERS
        if over and page.failed and not (page.struck or page.unwished or excused):
            self._law(charged == 1, "a failure is not counted")
        if charged:
            last = after.last_failure
            self._law(last is not None and last.pod_uid in page.culprits, "the failure of another pod is reported")

    # What there is.

    def now(self) -> datetime:
        """The time of day."""
        return datetime.fromisoformat(self.server.stamp())

    def job(self, uid: str | None) -> Json | None:
        """The job with this UID, as stored."""
        return next((job for job in self.server.cluster.held(JOBS_PLACE) if stored_objects.uid(job) == uid), None)

    def pods(self, job: str | None) -> list[Json]:
        """The pods of a job."""
        return [pod for pod in self.server.cluster.held(PODS_PLACE) if stored_objects.owner(pod) == job]

    def _lives(self, pod: Json) -> bool:
        return not (
            stored_objects.ended(pod)
            or stored_objects.node(pod) in self.lost
            or stored_objects.uid(pod) in self.given_up
        )

    @staticmethod
    def _all_but_status(job: Json) -> Json:
        metadata = {key: value for key, value in job["metadata"].items() if key != "resourceVersion"}
        return {**job, "metadata": metadata, "status": None}

    def _law(self, holds: bool, broken: str) -> None:  # noqa: FBT001 - reads as a sentence
        if not holds:
            raise InvariantError(broken)


def described(history: deque[tuple[str, Change]]) -> str:
    """The last writes, a line each."""
    return "\n".join(f"  {change.at} {actor}: {_line(change)}" for actor, change in history)


def _line(change: Change) -> str:
    subject = change.new or change.old
    assert subject is not None
    verb = "creates" if change.old is None else "removes" if change.new is None else "changes"
    text = f"{verb} {change.place[2]} {stored_objects.name(subject)} ({stored_objects.uid(subject)})"
    if change.place == JOBS_PLACE and change.new:
        status = change.new.get("status", {})
        text += f" {status.get('phase')} attempt {status.get('attempt')} launched {status.get('launchedAttempt')}"
        text += f" {status.get('restarts')} spec {change.new['metadata']['generation']}"
    if change.place == PODS_PLACE and change.new:
        text += f" {stored_objects.phase(change.new)} on {stored_objects.node(change.new)}" + (
            " going" if stored_objects.going(change.new) else ""
        )
    return text
