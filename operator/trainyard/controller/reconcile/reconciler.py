"""Reconcile one job: read the caches, plan, act, store the status once, record events."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from trainyard.api.constants import KIND
from trainyard.api.reasons import Reason
from trainyard.api.roles import member_index
from trainyard.api.spec import Framework
from trainyard.api.status import ConditionType, TrainingJobStatus
from trainyard.controller.bootstrap.logs import set_log_context
from trainyard.controller.metrics.collector import JobMetrics
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.executor import ExecutionResult, Executor
from trainyard.controller.reconcile.pod_events import PodEvents
from trainyard.controller.reconcile.refusals import permission_denied_message, webhook_failed_message
from trainyard.controller.reconcile.resources import TRAINING_JOBS, JobRecord, job_record
from trainyard.controller.reconcile.status_pace import StatusPace
from trainyard.controller.reconcile.workloads import Workloads
from trainyard.coordinator.agent_registry import AgentRegistry
from trainyard.coordinator.progress_store import ProgressStore
from trainyard.domain.decisions import CreateService, Event, Plan, SetTrue
from trainyard.domain.plan import plan
from trainyard.domain.state.network_view import NetworkView
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.status.pod_rejections import Refusal, refused
from trainyard.domain.status.transitions import apply_conditions
from trainyard.engine.tracker import WriteTracker
from trainyard.frameworks.agent_wrapper import unused_input
from trainyard.frameworks.command_conflicts import command_conflicts
from trainyard.frameworks.environment import user_set_identity
from trainyard.frameworks.foreign_variables import foreign_variables
from trainyard.frameworks.launcher_place import unplaced_launcher
from trainyard.frameworks.megatron import unfit_sizes
from trainyard.frameworks.visible_devices import hidden_devices
from trainyard.frameworks.worker_spec import Worker
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.events import EventRecorder
from trainyard.scheduling.network_choice import choose_network
from trainyard.scheduling.network_notes import applied_note, conflict_notes, invalid_because, refused_because
from trainyard.scheduling.placement import ignored_order
from trainyard.scheduling.scheduled_pod import kept_fields
from trainyard.scheduling.worker_network import Facts, all_facts, covers, with_network

_LOG = logging.getLogger(__name__)

CATCH_UP_SECONDS = 1.0
"""When to look again while the caches lack our own last write. Usually its event arrives first."""


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Decides when to reconcile and what to read and write. `domain` decides what should happen to the job."""

    caches: Caches
    executor: Executor
    writer: Writer
    tracker: WriteTracker[str]
    events: EventRecorder
    metrics: JobMetrics
    pace: StatusPace
    now: Callable[[], datetime]
    progress_store: ProgressStore | None = None
    """What agents have reported; None: there is no coordinator."""
    agent_registry: AgentRegistry | None = None
    """Which agents are connected; None: there is no coordinator."""
    pod_events: PodEvents | None = None
    """What the events of pods say that do not start; None: they are not read."""
    workloads: Workloads | None = None
    """What Kueue has decided; None: the operator is installed without Kueue."""

    async def reconcile(self, uid: str) -> float | None:
        """Reconcile the job with this UID. Returns the seconds until the next reconcile; None: no need for one."""
        record = self.caches.job(uid)
        if record is None:
            self.tracker.forget(uid)
            self.pace.forget(uid)
            if self.pod_events:
                self.pod_events.forget(uid)
            self._forget_agents(uid)
            return await self.workloads.release_orphans(uid) if self.workloads else None
        set_log_context(f"{record.namespace}/{record.name}", record.attempt)
        cache = self.caches.of(record.namespace)
        if not self.tracker.ready(uid, cache.newest_versions(), cache.is_deleting):
            return CATCH_UP_SECONDS
        try:
            waits = (await self._reconcile_record(record), self.pod_events.wait(uid) if self.pod_events else None)
            return min((wait for wait in waits if wait is not None), default=None)
        except ApiError as error:
            if error.namespace_terminating:
                return None
            raise

    async def _reconcile_record(self, record: JobRecord) -> float | None:
        """Plan, act and store the status. Returns the seconds until the next reconcile, if any."""
        seen = self._snapshot(record)
        if seen is None:
            return await self._report_invalid_spec(record)
        snapshot = await self.pod_events.explain(seen) if self.pod_events else seen
        snapshot = await self.workloads.explain(snapshot) if self.workloads else snapshot
        job, now = snapshot.job, self.now()
        decided = plan(snapshot, now)
        if _recreates_service(job, decided) and not await self._still_exists(record):
            return None
        result = await self._execute(record, job, decided) if decided.actions else ExecutionResult()
        if result.refusal is not None:
            refusal = self._with_network_profile(job, result.refusal)
            _LOG.debug(f"pods rejected reason={refusal.reason}: {refusal.message}")
            decided = refused(job, decided, refusal, now)
            requeue_after = await self._store_status(record, job, decided)
            # A rejection whose message changes each time must not shorten the retry delay.
            return requeue_after if requeue_after is None else max(requeue_after, decided.requeue_after or 0.0)
        if result.changed:
            # The caches will soon show what was done. One status write reports both.
            self.pace.mark_acted(record.uid)
            return CATCH_UP_SECONDS
        return await self._store_status(record, job, decided)

    def _snapshot(self, record: JobRecord) -> Snapshot | None:
        seen = self.caches.of(record.namespace).snapshot(
            record,
            agent=self.executor.agent is not None,
            reports=self.progress_store.of(record.uid) if self.progress_store else (),
            agent_registry=self.agent_registry,
            gang_schedulers=self.executor.gang_schedulers,
        )
        chosen = choose_network(seen.job.spec, self.executor.network_profiles).network if seen else None
        if seen is None or chosen is None:
            return seen
        return replace(seen, network=NetworkView(chosen.name, chosen.stamp, chosen.profile.sockets))

    def _with_network_profile(self, job: JobView, refusal: Refusal) -> Refusal:
        """Return the refusal with what the job's network profile adds: the server's message names the pod or the policy alone."""
        choice = choose_network(job.spec, self.executor.network_profiles)
        if refusal.reason is Reason.PODS_FORBIDDEN:
            return replace(refusal, message=f"{refused_because(choice, job.spec)}{refusal.message}")
        if refusal.reason is Reason.INVALID_TEMPLATE and (why := invalid_because(choice)):
            return Refusal(Reason.NETWORK_PROFILE_UNUSABLE, f"{why}{refusal.message}")
        return refusal

    async def _still_exists(self, record: JobRecord) -> bool:
        """Ask the API server. The watch may be late, and the garbage collector deletes each Service of a deleted job."""
        await self._read_again(record)
        return self.caches.job(record.uid) is not None

    async def _execute(self, record: JobRecord, job: JobView, decided: Plan) -> ExecutionResult:
        with self.pace.acting():
            removed = await self.executor.remove_pods(job, decided)
            forced = [Event("Warning", Reason.FORCED_DELETION, removal.note) for removal in removed]
            self._record_events(record, decided, forced, first=0)
            result = await self.executor.execute(job, decided)
        return replace(result, changed=result.changed or bool(removed))

    async def _store_status(self, record: JobRecord, job: JobView, decided: Plan) -> float | None:
        """Write the status if it changed, then record events. A conflicting write means: decide again."""
        requeue_after = decided.requeue_after
        if decided.status == job.status:
            self.pace.mark_clean(record.uid)
        else:
            if wait := self.pace.wait(job, decided.status):
                return wait
            if not await self._write_status(record, decided.status):
                return CATCH_UP_SECONDS
            self.metrics.status_changed(job, decided.status)
            if decided.status.finished:
                self._forget_agents(record.uid)
            if self.caches.job(record.uid) is not record:
                requeue_after = 0.0
        self._record_events(record, decided, [*decided.events, *self._template_warnings(job, decided)])
        return requeue_after

    def _record_events(self, record: JobRecord, decided: Plan, events: Sequence[Event], *, first: int = 1) -> None:
        """Record the events of a plan in order. `first`: the position of the first one in this version of the job."""
        for position, event in enumerate(events, first):
            log = _LOG.info if event.type == "Normal" else _LOG.warning
            log(f"{event.reason}: {event.note}")
            self.events.record(
                record.reference,
                event.type,
                event.reason,
                event.note,
                action="Reconcile",
                key=f"{decided.status.attempt}/{event.note}",
                sort_key=_sort_key(record, position),
            )

    async def _write_status(self, record: JobRecord, status: TrainingJobStatus) -> bool:
        """Store the status if the job is unchanged since the decision; else read it again for the next reconcile."""
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
            self._report_unwritable(record, error)
            raise
        # Update the cache at once. The watch adds nothing, and the next reconcile need not wait for it.
        version = int(made["metadata"]["resourceVersion"])
        self.caches.of(record.namespace).jobs.apply(record.with_status(status, version))
        self.pace.mark_written(record.uid)
        if self.agent_registry:
            self.agent_registry.wake(record.uid)
        return True

    def _report_unwritable(self, record: JobRecord, error: ApiError) -> None:
        """Record an event that the status cannot be written, where somebody has to act: the status itself cannot say so."""
        if error.permission_denied:
            reason, note = Reason.PERMISSION_DENIED, permission_denied_message(error)
        elif error.webhook_failed:
            reason, note = Reason.WEBHOOK_FAILED, webhook_failed_message(error)
        else:
            return
        self.events.record(
            record.reference, "Warning", reason, note, action="Reconcile", key="status", sort_key=_sort_key(record)
        )

    def _forget_agents(self, uid: str) -> None:
        if self.progress_store:
            self.progress_store.forget(uid)
        if self.agent_registry:
            self.agent_registry.forget(uid)

    async def _read_again(self, record: JobRecord) -> None:
        """Read the job from the API server. The cache is wrong, and no event may ever correct it: a list can be older
        than its watch.
        """
        raw = await self.writer.get(TRAINING_JOBS, record.namespace, record.name)
        cache = self.caches.of(record.namespace)
        if raw is None or raw["metadata"]["uid"] != record.uid:
            cache.jobs.remove(record.uid)
        else:
            cache.jobs.apply(job_record(raw, cache.accelerators))

    def _template_warnings(self, job: JobView, decided: Plan) -> list[Event]:
        """Return warnings, once per attempt together with WorkersCreated, about what in the template may not work as
        meant.
        """
        if not any(event.reason is Reason.WORKERS_CREATED for event in decided.events):
            return []
        first = [0, *(member_index(role.name, 0) for role in job.spec.roles)]
        workers = [Worker(job.of_member(i), i, decided.status.attempt, job.spec.replicas) for i in first]
        identity = dict.fromkeys(
            f"{source} sets {', '.join(names)}; these are kept and may not fit the real group: remove them"
            " from env, unless they are set on purpose"
            for worker in workers
            for source, names in worker.sources(user_set_identity(worker)).items()
        )
        warnings = [Event("Warning", Reason.USER_ENVIRONMENT_PRESERVED, note) for note in identity]
        notes = filter(None, dict.fromkeys(map(hidden_devices, workers)))
        warnings += [Event("Warning", Reason.USER_ENVIRONMENT_PRESERVED, note) for note in notes]
        foreign = dict.fromkeys(note for worker in workers for note in foreign_variables(worker))
        warnings += [Event("Warning", Reason.USER_ENVIRONMENT_PRESERVED, note) for note in foreign]
        conflicts = dict.fromkeys(note for worker in workers for note in command_conflicts(worker))
        warnings += [Event("Warning", Reason.INVALID_SPEC, note) for note in conflicts]
        warnings += self._network_events(workers)
        if note := ignored_order(job, served=self.executor.agent is not None and self.agent_registry is not None):
            warnings.append(Event("Warning", Reason.RANK_ORDER_IGNORED, note))
        kept = dict.fromkeys(n for worker in workers for n in kept_fields(worker.job, self.executor.gang_schedulers))
        warnings += [Event("Warning", Reason.USER_SCHEDULING_PRESERVED, note) for note in kept]
        if self.executor.agent is not None and (note := unused_input(workers[0])):
            warnings.append(Event("Warning", Reason.STANDARD_INPUT_UNUSED, note))
        if note := unplaced_launcher(workers[0], has_agent=self.executor.agent is not None):
            warnings.append(Event("Warning", Reason.GROUPS_SPLIT, note))
        if job.spec.framework is Framework.MEGATRON and (note := unfit_sizes(workers[0])):
            warnings.append(Event("Warning", Reason.INVALID_SPEC, note))
        return warnings

    def _network_events(self, workers: Sequence[Worker]) -> list[Event]:
        """Return what the network profile of the job has set, and what of it the template kept. `workers`: one of each role."""
        choice = choose_network(workers[0].spec, self.executor.network_profiles)
        network, facts = choice.network, Facts()
        if network is not None:
            templates = [w.spec.template for w in workers if covers(network, w.index, w.spec.template)]
            facts = all_facts(with_network(template, network).facts for template in templates)
        note = applied_note(choice, facts)
        events = [Event("Normal", Reason.NETWORK_PROFILE_APPLIED, note)] if note else []
        conflicts = conflict_notes(network, facts) if network else []
        return [*events, *(Event("Warning", Reason.NETWORK_PROFILE_CONFLICT, each) for each in conflicts)]

    async def _report_invalid_spec(self, record: JobRecord) -> float | None:
        """Store a condition that names the invalid field, keep the rest of the status, and wait for the spec to change."""
        if record.managed_elsewhere:
            return None
        message = f"the operator cannot read this TrainingJob: {record.problem}; correct the field"
        _LOG.error(message)
        # An unreadable status was written by hand. It starts empty again, and the pods show which attempt this is.
        stored = record.status or TrainingJobStatus()
        stalled = [SetTrue(ConditionType.STALLED, Reason.INVALID_SPEC, message)]
        conditions = apply_conditions(stored, stalled, record.generation, self.now())
        status = stored.evolve(conditions=conditions, observed_generation=record.generation)
        if status == record.status:
            return None
        return 0.0 if await self._write_status(record, status) else CATCH_UP_SECONDS


def _recreates_service(job: JobView, decided: Plan) -> bool:
    """Return whether the plan creates a Service that has existed before."""
    creates = any(isinstance(action, CreateService) for action in decided.actions)
    return creates and bool(job.status.internal.launched_attempt)


def _sort_key(record: JobRecord, position: int = 0) -> str:
    """Return the position of an event among those of its job: by the version of the job for which it was decided.

    Unlike a time, the version is the same for a process that decides again after a crash.
    """
    return f"{record.resource_version:016x}{position:02x}"
