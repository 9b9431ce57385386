"""One pass over a job: look, plan, act, store the status once, tell."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from trainyard.api.constants import KIND
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType, TrainingJobStatus
from trainyard.controller.bootstrap.logs import about
from trainyard.controller.metrics.collector import JobMetrics
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.executor import Executor, Result, without_right
from trainyard.controller.reconcile.resources import TRAINING_JOBS, JobRecord, job_record
from trainyard.controller.reconcile.status_pace import StatusPace
from trainyard.coordinator.agent_registry import AgentRegistry
from trainyard.coordinator.progress_store import ProgressStore
from trainyard.domain.actions import CreateService, Event, Plan
from trainyard.domain.conditions import apply_conditions, condition_true
from trainyard.domain.plan import plan
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.status.pod_rejections import refused
from trainyard.engine.tracker import WriteTracker
from trainyard.frameworks.environment import user_set_identity
from trainyard.frameworks.worker_spec import Worker
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.events import EventRecorder

_LOG = logging.getLogger(__name__)

CATCH_UP_SECONDS = 1.0
"""When to look again while the caches do not show our own last write. Their next event comes first, as a rule."""


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Makes passes. Knows when, what and how; what for is decided in `domain`."""

    caches: Caches
    executor: Executor
    writer: Writer
    tracker: WriteTracker[str]
    events: EventRecorder
    metrics: JobMetrics
    pace: StatusPace
    now: Callable[[], datetime]
    progress_store: ProgressStore | None = None
    """What the agents of workers have told; None: there is no coordinator."""
    agent_registry: AgentRegistry | None = None
    """Which of them are there, likewise."""

    async def reconcile(self, uid: str) -> float | None:
        """One pass over the job with this UID. Returns after how many seconds to look again, if at all."""
        record = self.caches.job(uid)
        if record is None:
            self.tracker.forget(uid)
            self.pace.forget(uid)
            self._forget_reports(uid)
            return None
        about(f"{record.namespace}/{record.name}", record.attempt)
        cache = self.caches.of(record.namespace)
        if not self.tracker.ready(uid, cache.seen(), cache.going):
            return CATCH_UP_SECONDS
        try:
            return await self._pass(record)
        except ApiError as error:
            if error.namespace_terminating:
                return None
            raise

    async def _pass(self, record: JobRecord) -> float | None:
        reports = self.progress_store.of(record.uid) if self.progress_store else ()
        cache = self.caches.of(record.namespace)
        brought = self.executor.agent is not None
        snapshot = cache.snapshot(record, agent=brought, reports=reports, agent_registry=self.agent_registry)
        if snapshot is None:
            return await self._unreadable(record)
        now = self.now()
        decided = plan(snapshot, now)
        if snapshot.job.status.internal.launched_attempt and any(isinstance(a, CreateService) for a in decided.actions):
            # It was there before. The job may be gone too, and its watch be away: others would collect each new one.
            await self._read_again(record)
            if self.caches.job(record.uid) is None:
                return None
        done = await self._act(record, snapshot.job, decided) if decided.actions else Result()
        if done.refusal is not None:
            _LOG.debug(f"refused: {done.refusal.reason}: {done.refusal.message}")
            decided = refused(snapshot.job, decided, done.refusal, now)
            again = await self._store(record, snapshot.job, decided)
            # Not sooner than it was meant to be tried again, even where the refusal has other words each time.
            return again if again is None else max(again, decided.requeue_after or 0.0)
        if done.changed:
            # What was done will be seen in a moment, and is told then: one status for both.
            self.pace.acted(record.uid)
            return CATCH_UP_SECONDS
        return await self._store(record, snapshot.job, decided)

    async def _act(self, record: JobRecord, job: JobView, decided: Plan) -> Result:
        with self.pace.acting():
            removed = await self.executor.remove(job, decided)
            for removal in removed:
                self._tell(record, decided, Event("Warning", Reason.FORCED_DELETION, removal.note))
            done = await self.executor.carry_out(job, decided)
        return replace(done, changed=done.changed or bool(removed))

    async def _store(self, record: JobRecord, job: JobView, decided: Plan) -> float | None:
        """Write the status if it changed, then tell of it. Somebody else's write in between means: decide again."""
        again = decided.requeue_after
        if decided.status == job.status:
            self.pace.told(record.uid)
        else:
            if wait := self.pace.wait(job, decided.status):
                return wait
            if not await self._write(record, decided.status):
                return CATCH_UP_SECONDS
            self.metrics.moved(job, decided.status)
            if decided.status.finished:
                self._forget_reports(record.uid)
            if self.caches.job(record.uid) is not record:
                again = 0.0
        for event in (*decided.events, *self._warnings(job, decided)):
            self._tell(record, decided, event)
        return again

    def _tell(self, record: JobRecord, decided: Plan, event: Event) -> None:
        log = _LOG.info if event.type == "Normal" else _LOG.warning
        log(f"{event.reason}: {event.note}")
        attempt = decided.status.attempt
        self.events.record(
            record.reference,
            event.type,
            event.reason,
            event.note,
            action="Reconcile",
            key=f"{attempt}/{event.note}",
            sort_key=f"{attempt:06x}{_moment(event, decided, begun=attempt > record.attempt)}",
        )

    async def _write(self, record: JobRecord, status: TrainingJobStatus) -> bool:
        """Store the status, if the job is still as it was decided on; else read it again, for the next pass."""
        metadata = {
            "name": record.name,
            "namespace": record.namespace,
            "uid": record.uid,
            "resourceVersion": str(record.resource_version),
        }
        body: dict[str, Any] = {
            "apiVersion": TRAINING_JOBS.api_version,
            "kind": KIND,
            "metadata": metadata,
            "status": status.dump(),
        }
        try:
            made = await self.writer.replace_status(TRAINING_JOBS, record.namespace, record.name, body)
        except ApiError as error:
            if error.conflict or error.not_found:
                await self._read_again(record)
                return False
            if error.permission_denied:
                # The one thing that the status cannot say.
                note = without_right(error)
                self.events.record(
                    record.reference, "Warning", Reason.PERMISSION_DENIED, note, action="Reconcile", key="status"
                )
            raise
        # Known at once: the watch has nothing to add, and the next pass need not wait for it.
        version = int(made["metadata"]["resourceVersion"])
        self.caches.of(record.namespace).jobs.apply(record.with_status(status, version))
        self.pace.hold(record.uid)
        if self.agent_registry:
            self.agent_registry.wake(record.uid)
        return True

    def _forget_reports(self, uid: str) -> None:
        if self.progress_store:
            self.progress_store.forget(uid)
        if self.agent_registry:
            self.agent_registry.forget(uid)

    async def _read_again(self, record: JobRecord) -> None:
        """The job is not what the cache says, and nobody may ever tell: a list can be older than the watch that goes on after it."""
        raw = await self.writer.get(TRAINING_JOBS, record.namespace, record.name)
        jobs = self.caches.of(record.namespace).jobs
        if raw is None or raw["metadata"]["uid"] != record.uid:
            jobs.remove(record.uid)
        else:
            jobs.apply(job_record(raw))

    def _warnings(self, job: JobView, decided: Plan) -> list[Event]:
        """Once an attempt, with the event that its workers are there: variables in the template that may not fit."""
        if not any(event.reason is Reason.WORKERS_CREATED for event in decided.events):
            return []
        names = user_set_identity(Worker(job, 0, decided.status.attempt, job.spec.replicas))
        note = f"the template sets {', '.join(names)}; these are kept and may not fit the real group"
        return [Event("Warning", Reason.USER_ENVIRONMENT_PRESERVED, note)] if names else []

    async def _unreadable(self, record: JobRecord) -> float | None:
        """Say that the spec cannot be read, keep what is known of the job, and wait for the spec to change."""
        if record.managed_elsewhere:
            return None
        message = f"the operator cannot read this TrainingJob: {record.problem}; correct the field"
        _LOG.error(message)
        # A status that cannot be read was written by hand: it is begun anew, and the pods tell which attempt this is.
        stored = record.status or TrainingJobStatus()
        stalled = [condition_true(ConditionType.STALLED, Reason.INVALID_SPEC, message)]
        conditions = apply_conditions(stored, stalled, record.generation, self.now())
        status = stored.evolve(conditions=conditions, observed_generation=record.generation)
        if status == record.status:
            return None
        return 0.0 if await self._write(record, status) else CATCH_UP_SECONDS


def _moment(event: Event, decided: Plan, *, begun: bool) -> int:
    """Which of an attempt's events it is: of its begin, of its pods, of its course, of the job's end."""
    if begun:
        return 0
    if event.reason is Reason.WORKERS_CREATED:
        return 1
    return 3 if decided.status.finished else 2
