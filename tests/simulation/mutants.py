"""Known bugs, planted into the operator one at a time: a simulation is worth what it finds of these.

Each is a mistake that controllers of this kind really make. A mutant stands in for a function for as long as it is planted.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

from trainyard.api.reasons import Reason
from trainyard.controller.kopf_adapter.watch_scope import JobInformer
from trainyard.controller.reconcile import reconciler
from trainyard.domain import plan as planning, worker_pods
from trainyard.domain.decisions import DeletePod, Fail, Outcome, Plan, RemovePod, Restart
from trainyard.domain.recovery import agent_reports, failure_policy
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.scaling import group_size
from trainyard.domain.state import worker_views
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.status import transitions
from trainyard.domain.stop import deadlines, pod_removal
from trainyard.engine.leader import LeaderElector
from trainyard.engine.queue import WorkQueue
from trainyard.engine.tracker import WriteTracker
from trainyard.kube.apply import Writer
from trainyard.kube.clock import ServerClock
from trainyard.kube.errors import ApiError
from trainyard.kube.reflector import Reflector
from trainyard.kube.store import Store

Planted = tuple[object, str, object]
"""Whose what is replaced by what."""


# How it sees the cluster


def decides_before_it_sees_its_own_writes() -> Planted:
    """The caches are a moment behind, and the pass knows nothing of it."""
    return WriteTracker, "ready", lambda *_: True


def misses_deletions_that_fell_into_a_gap() -> Planted:
    """A new list only adds: what was deleted while no watch ran stays in the cache for ever."""
    real = Store.replace

    def only_add(store: Any, objs: Any, version: int) -> object:
        return real(store, {**store._objects, **{obj.uid: obj for obj in objs}}.values(), version)

    return Store, "replace", only_add


def takes_each_event_for_the_newest() -> Planted:
    """An event that comes twice or late brings an old state back."""
    real = Store.apply

    def apply(store: Any, obj: Any) -> object:
        held = store._objects.get(obj.uid)
        return real(store, obj) or store._put(obj, held)

    return Store, "apply", apply


def resumes_from_an_expired_version() -> Planted:
    """410 is an error like any other: tried again from the same version."""
    real = Reflector._pause

    async def pause(reflector: Any, error: ApiError) -> None:
        version = reflector._version
        await real(reflector, error)
        reflector._version = version or reflector._version

    return Reflector, "_pause", pause


def relies_on_the_watch_alone() -> Planted:
    """Jobs are listed at the start and never again."""

    async def run(feed: JobInformer) -> None:
        while not feed.synced.is_set():
            try:
                await feed.relist()
            except ApiError:
                await asyncio.sleep(1)
        await asyncio.Event().wait()

    return JobInformer, "run", run


def goes_by_the_clock_of_its_machine() -> Planted:
    """The time in the API server's answers is ignored: a pod that was deleted just now counts as lost for minutes."""
    return ServerClock, "observe", lambda *_: None


# What it decides


def waits_for_no_old_pod() -> Planted:
    """The new attempt is made while the old one still ends."""
    return pod_removal, "is_lost", lambda *_: True


def waits_for_a_lost_node_for_ever() -> Planted:
    """A pod on a dead node never goes."""
    return pod_removal, "LOST_NODE_TIMEOUT", timedelta(days=1)


def removes_pods_that_a_node_is_about_to_end() -> Planted:
    """What is on its way out may as well be gone."""

    def removals(snapshot: Snapshot, _: datetime) -> pod_removal.Removals:
        going = [p for p in snapshot.unused if p.deletion_time and not p.ended]
        return pod_removal.Removals([RemovePod(p.name, p.uid, "it goes anyway") for p in going])

    return pod_removal, "removals", removals


def replaces_a_pod_of_a_running_group() -> Planted:
    """A missing worker is recreated, and joins a group that has long started without it."""
    real = planning.plan

    def plan(snapshot: Snapshot, now: datetime) -> Plan:
        status = snapshot.job.status
        if not snapshot.current or status.internal.launched_attempt != status.attempt:
            return real(snapshot, now)
        begun = status.evolve(launched_attempt=status.attempt - 1)
        return real(replace(snapshot, job=replace(snapshot.job, status=begun)), now)

    return reconciler, "plan", plan


def acts_in_the_reconcile_that_counts() -> Planted:
    """The failed pods are deleted before their failure is stored: who dies in between, or is refused, has counted nothing."""
    real = planning.plan

    def plan(snapshot: Snapshot, now: datetime) -> Plan:
        decided = real(snapshot, now)
        if decided.status.attempt == snapshot.job.status.attempt:
            return decided
        return replace(decided, actions=[DeletePod(p.name, p.uid, Reason.STALE_ATTEMPT) for p in snapshot.current])

    return reconciler, "plan", plan


def counts_the_victims_too() -> Planted:
    """Each failed worker is a failure of its own."""
    real = failure_policy.apply_failure_policy

    def apply_failure_policy(cause: Cause, snapshot: Snapshot, now: datetime) -> Fail | Restart:
        decided = real(cause, snapshot, now)
        counted = "last_failure" in decided.changes
        if isinstance(decided, Fail) or not counted or snapshot.job.spec.replicas == 1:
            return decided
        restarts = decided.changes["restarts"]
        restarts = restarts.evolve(failures=restarts.failures + 1)
        return replace(decided, changes={**decided.changes, "restarts": restarts})

    return failure_policy, "apply_failure_policy", apply_failure_policy


def counts_pods_that_were_asked_to_stop() -> Planted:
    """A worker that ends because somebody ended it is taken for one that failed."""
    return worker_views, "_caused_by_disruption", lambda _: False


def restarts_a_finished_job() -> Planted:
    """The end is a state like any other: a pod that goes afterwards was taken away."""

    def after_the_end(snapshot: Snapshot, _: pod_removal.Removals, now: datetime) -> planning.Step:
        due, agents = deadlines.check_deadlines(snapshot, now), agent_reports.merge_agent_reports(snapshot, now)
        return planning._decide(agents, due, now) or worker_pods.reconcile_pods(snapshot, due.waits, now)

    return pod_removal, "after_the_end", after_the_end


def resumes_the_old_attempt() -> Planted:
    """A suspension does not end the attempt: its pods are missed afterwards."""
    real = transitions.suspend

    def suspend(snapshot: Snapshot, now: datetime) -> Outcome:
        decided = real(snapshot, now)
        return replace(decided, changes={**decided.changes, "attempt": snapshot.job.status.attempt})

    return transitions, "suspend", suspend


def takes_a_size_that_is_not_allowed() -> Planted:
    """A group follows `replicas` to whatever number it says."""
    return group_size, "allowed_size", lambda snapshot: snapshot.size


# How it writes


def deletes_by_name_alone() -> Planted:
    """What bears the name by then is deleted, whosever it is."""

    async def delete(
        writer: Writer, resource: Any, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> None:
        body = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        try:
            await writer.session.request("DELETE", resource.path(namespace, name), body=body)
        except ApiError as error:
            if not error.not_found:
                raise

    return Writer, "delete", delete


def writes_the_status_without_its_version() -> Planted:
    """The last to write wins, whatever it had read."""

    async def replace_status(
        writer: Writer, resource: Any, namespace: str, name: str, obj: Mapping[str, Any]
    ) -> dict[str, Any]:
        metadata = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
        path = resource.path(namespace, name, "status")
        return await writer.session.request("PUT", path, body={**obj, "metadata": metadata})

    return Writer, "replace_status", replace_status


def drops_a_key_that_failed() -> Planted:
    """A pass that failed is not tried again before something changes."""
    return WorkQueue, "add_rate_limited", lambda *_: None


# How it leads


def writes_without_a_look_at_the_lease() -> Planted:
    """Who was the leader once goes on writing."""
    return LeaderElector, "permit", lambda _: math.inf


def takes_a_lease_that_has_not_run_out() -> Planted:
    """The other has not reported for a moment, and that is enough."""
    return LeaderElector, "_is_available", lambda *_: True


MUTANTS: tuple[Callable[[], Planted], ...] = (
    decides_before_it_sees_its_own_writes,
    misses_deletions_that_fell_into_a_gap,
    takes_each_event_for_the_newest,
    resumes_from_an_expired_version,
    relies_on_the_watch_alone,
    goes_by_the_clock_of_its_machine,
    waits_for_no_old_pod,
    waits_for_a_lost_node_for_ever,
    removes_pods_that_a_node_is_about_to_end,
    replaces_a_pod_of_a_running_group,
    acts_in_the_reconcile_that_counts,
    counts_the_victims_too,
    counts_pods_that_were_asked_to_stop,
    restarts_a_finished_job,
    resumes_the_old_attempt,
    takes_a_size_that_is_not_allowed,
    deletes_by_name_alone,
    writes_the_status_without_its_version,
    drops_a_key_that_failed,
)

MUTANTS_OF_PAIRS: tuple[Callable[[], Planted], ...] = (
    writes_without_a_look_at_the_lease,
    takes_a_lease_that_has_not_run_out,
)


@contextmanager
def planted(mutant: Callable[[], Planted]) -> Iterator[None]:
    """Operators that run in here have this bug."""
    whose, what, instead = mutant()
    with patch.object(whose, what, instead):
        yield
