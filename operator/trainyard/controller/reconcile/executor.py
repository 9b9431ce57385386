"""Carry out a plan's actions. Decides nothing; each action may be repeated without harm."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, assert_never

from trainyard.api.constants import KIND
from trainyard.api.reasons import Reason
from trainyard.api.roles import is_worker
from trainyard.api.scheduling import GangScheduler
from trainyard.controller.reconcile.caches import REMOVED, Caches
from trainyard.controller.reconcile.container_restarts import ContainerRestartSupport
from trainyard.controller.reconcile.pod_groups import PodGroups
from trainyard.controller.reconcile.refusals import (
    InvalidTemplateError,
    NameConflictError,
    NetworkProfileError,
    name_taken,
    to_refusal,
)
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.controller.reconcile.workloads import QueueRefusedError, Workloads
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
    WorkloadAction,
)
from trainyard.domain.state.gang_schedulers import NO_GANG_SCHEDULERS, GangSchedulers
from trainyard.domain.state.observe import owner_uid
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import STOP_DEADLINE_SECONDS
from trainyard.domain.status.pod_rejections import Refusal
from trainyard.engine.batch import Done, Failed, slow_start
from trainyard.engine.tracker import WriteTracker
from trainyard.frameworks import manifests
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.frameworks.pod_metadata import PodMetadata
from trainyard.frameworks.worker_spec import Worker
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import COMPUTE_DOMAINS, NETWORK_POLICIES, PODS, SERVICES, WORKLOADS, Resource
from trainyard.queues.admission import with_admission
from trainyard.scheduling.known_networks import KNOWN_NETWORKS
from trainyard.scheduling.network_choice import choose_network
from trainyard.scheduling.network_profile import NamedProfile, NetworkProfiles
from trainyard.scheduling.placement import follows_placement
from trainyard.scheduling.scheduled_pod import placed

_LOG = logging.getLogger(__name__)

MAX_PARALLEL_REQUESTS = 100
"""Requests in parallel for one job, once the first have succeeded. Creating the pods of a job of 500 takes 1.4 times as
long as with a plain client with 50, and 1.1 times with 100. Their share of the API server limits them.
"""


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The outcome of a plan's actions."""

    refusal: Refusal | None = None
    """The first rejection; no action was tried after it."""
    changed: bool = False
    """Whether something was created or deleted that the caches will show soon."""


@dataclass(frozen=True, slots=True)
class Executor:
    """Turns actions into requests."""

    writer: Writer
    tracker: WriteTracker[str]
    caches: Caches
    restart_support: ContainerRestartSupport
    agent: AgentImage | None = None
    """The image and the way that injects the agent; None: no agent is injected."""
    coordinator_endpoint: Callable[[], CoordinatorEndpoint | None] = lambda: None
    """Return the endpoint that new agents connect to."""
    peers: Sequence[dict[str, Any]] | None = None
    """Peers that may reach workers, beside those of their own job, by a NetworkPolicy per job; None: no policy is
    created.
    """
    pod_metadata: PodMetadata = field(default_factory=PodMetadata)
    """The labels and annotations of workers that the user may replace."""
    network_profiles: NetworkProfiles = field(default_factory=lambda: KNOWN_NETWORKS)
    """The network profiles that jobs can name."""
    ranks_follow_placement: bool = False
    """Whether ranks follow the placement of workers where the user does not say so."""
    pod_groups: PodGroups | None = None
    """The requests about PodGroups; None: no gang scheduler is permitted."""
    workloads: Workloads | None = None
    """The requests about Workloads; None: the operator is installed without Kueue."""
    irremovable_pods: set[str] = field(default_factory=set)
    """UIDs of pods whose removal was refused: this process asks once for each."""

    @property
    def gang_schedulers(self) -> GangSchedulers:
        """The gang schedulers that jobs can have."""
        return self.pod_groups.discovery.schedulers if self.pod_groups else NO_GANG_SCHEDULERS

    async def execute(self, job: JobView, plan: Plan) -> ExecutionResult:
        """Carry out all actions except removals, in order: the Service, deletions, the PodGroup, the NetworkPolicy, the
        ComputeDomain, new pods. Stops at the first rejection.

        Raises ApiError if the server fails or does not answer. The outcome is unknown then, and the next reconcile
        looks again.
        """
        changed = False
        for kind, calls in self._calls(job, plan):
            try:
                outcomes = await slow_start(calls, limit=MAX_PARALLEL_REQUESTS)
            except NameConflictError as error:
                return ExecutionResult(name_taken(error), changed)
            except QueueRefusedError as error:
                return ExecutionResult(Refusal(error.reason, error.message), changed)
            except InvalidTemplateError as error:
                return ExecutionResult(Refusal(Reason.INVALID_TEMPLATE, str(error)), changed)
            except NetworkProfileError as error:
                return ExecutionResult(Refusal(Reason.NETWORK_PROFILE_UNUSABLE, str(error)), changed)
            changed |= any(isinstance(o, Done) and o.value for o in outcomes)
            if failed := next((o.error for o in outcomes if isinstance(o, Failed)), None):
                return ExecutionResult(to_refusal(failed, kind), changed)
        _log_deletions(plan)
        return ExecutionResult(changed=changed)

    async def remove_pods(self, job: JobView, plan: Plan) -> list[RemovePod]:
        """Delete pods by force; returns those that still existed. This comes first, since new pods may wait for their
        quota.

        A refusal is only logged. It does not affect the job, which has lived with these pods until now.
        """
        removals = [a for a in plan.actions if isinstance(a, RemovePod) and a.uid not in self.irremovable_pods]
        calls = [self._call(job, removal) for removal in removals]
        removed = []
        for removal, outcome in zip(removals, await slow_start(calls, limit=MAX_PARALLEL_REQUESTS), strict=True):
            match outcome:
                case Done(True):
                    removed.append(removal)
                case Failed(error):
                    if not error.retryable:
                        self.irremovable_pods.add(removal.uid)
                    _LOG.warning(f"cannot delete a pod by force pod={removal.name}: {error}")
                case _:
                    pass  # it was gone already, or is deleted later
        return removed

    def _calls(self, job: JobView, plan: Plan) -> Iterator[tuple[Resource | None, list[Callable[[], Awaitable[bool]]]]]:
        """Yield groups of calls that may run in parallel, each with the kind of object that it creates."""
        groups: tuple[tuple[Resource | None, tuple[type[Action], ...]], ...] = (
            (SERVICES, (CreateService,)),
            (None, (DeletePod, StopPod, DeletePodGroups, DeleteJob)),
            (WORKLOADS, (CreateWorkload, ChangeWorkload, DeleteWorkload)),
            (self._kind_of_pod_group(job), (CreatePodGroup,)),
            (PODS, (CreateWorker,)),
        )
        for makes, kinds in groups:
            calls = [self._call(job, action) for action in plan.actions if isinstance(action, kinds)]
            if not calls:
                continue
            if CreateWorker in kinds and self.peers is not None:
                yield NETWORK_POLICIES, [partial(self._ensure_network_policy, job, self.peers)]
            if CreateWorker in kinds and job.spec.scheduling.compute_domain is not None:
                yield COMPUTE_DOMAINS, [partial(self._ensure_compute_domain, job)]
            yield makes, calls

    def _kind_of_pod_group(self, job: JobView) -> Resource | None:
        group = job.status.pod_group
        return self.pod_groups.discovery.resource(group.scheduler) if self.pod_groups and group else None

    def _call(self, job: JobView, action: Action) -> Callable[[], Awaitable[bool]]:
        match action:
            case CreateService():
                return lambda: self._create(job, SERVICES, manifests.service(job))
            case CreatePodGroup():
                return lambda: self._ensure_pod_group(job)
            case DeletePodGroups(scheduler):
                return lambda: self._delete_pod_groups(job, scheduler)
            case CreateWorker(index, attempt, workers, recreated):
                worker = Worker(job.of_member(index), index, attempt, workers, recreated=recreated)
                return lambda: self._create_worker(job, worker)
            case DeletePod(name, uid, reason):
                return lambda: self._delete(job, PODS, name, uid, reason)
            case StopPod(name, uid, reason):
                return lambda: self._stop(job, name, uid, reason)
            case DeleteJob(reason):
                return lambda: self._delete(job, TRAINING_JOBS, job.name, job.uid, reason)
            case RemovePod(name, uid):
                return lambda: self._remove(job, name, uid)
            case CreateWorkload() | ChangeWorkload() | DeleteWorkload():
                return lambda: self._work_on(job, action)
            case _:
                assert_never(action)

    async def _work_on(self, job: JobView, action: WorkloadAction) -> bool:
        if self.workloads is None:
            return False
        match action:
            case CreateWorkload():
                manifest = await self.workloads.manifest(job, action, self._pod_of)
                return await self._create(job, WORKLOADS, manifest)
            case ChangeWorkload():
                return await self.workloads.change(job, action, self._pod_of)
            case DeleteWorkload(name, uid):
                return await self._delete(job, WORKLOADS, name, uid, Reason.WORKLOAD_REPLACED)
            case _:
                assert_never(action)

    def _pod_of(self, job: JobView, worker: Worker) -> dict[str, Any]:
        """Return the pod of a member: for its creation, and for the Workload by which the job asks for quota."""
        choice = choose_network(job.spec, self.network_profiles)
        if choice.problem:
            raise NetworkProfileError(choice.problem)
        orders = is_worker(worker.index) and follows_placement(
            job, worker.workers, by_default=self.ranks_follow_placement
        )
        endpoint = self.coordinator_endpoint()
        built = _build_worker_pod(worker, self.agent, endpoint, self.pod_metadata, choice.network, orders_ranks=orders)
        return with_admission(worker, placed(job, built, worker.workers, self.gang_schedulers))

    async def _create_worker(self, job: JobView, worker: Worker) -> bool:
        plain = self._pod_of(job, worker)
        manifest = await self.restart_support.with_supported_rule(job.namespace, plain)
        try:
            return await self._create(job, PODS, manifest)
        except ApiError as error:
            if manifest is plain or not self.restart_support.retries_without_rule(job.namespace, error):
                raise
        return await self._create(job, PODS, plain)

    async def _create(self, job: JobView, resource: Resource, manifest: dict[str, Any]) -> bool:
        """Create an object, or find an existing one. Returns whether it is news to the caches."""
        cache, new = self.caches.of(job.namespace), True
        found, fresh = await self._ensure(job, resource, manifest)
        if not fresh:
            new = cache.add_found(resource, found)
        elif resource == PODS:
            # The response has metadata only.
            cache.add_created({**manifest, "metadata": found["metadata"]})
        elif resource == WORKLOADS:
            cache.add_created_workload({**manifest, "metadata": found["metadata"]})
        self.tracker.wrote(job.uid, resource.plural, int(found["metadata"]["resourceVersion"]))
        return new

    async def _ensure_network_policy(self, job: JobView, peers: Sequence[dict[str, Any]]) -> bool:
        """Make sure that the job's NetworkPolicy exists. It is not watched: the API server confirms it before workers
        are created.
        """
        manifest = manifests.network_policy(job, peers)
        try:
            await self._ensure(job, NETWORK_POLICIES, manifest)
        except ApiError as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            # Invalid peers in today's settings do not affect a policy that the job has already.
            if await self._get_owned(job, NETWORK_POLICIES, manifest["metadata"]["name"]) is None:
                raise
        return False

    async def _ensure_pod_group(self, job: JobView) -> bool:
        """Make sure that the PodGroup of the pods exists. It is not watched: the API server confirms it before pods are created."""
        if self.pod_groups and (group := job.status.pod_group):
            resource = self.pod_groups.discovery.resource(group.scheduler)
            await self._ensure(job, resource, self.pod_groups.manifest(job, group))
        return False

    async def _delete_pod_groups(self, job: JobView, scheduler: GangScheduler) -> bool:
        if self.pod_groups:
            await self.pod_groups.delete_all(job, scheduler)
        return False

    async def _ensure_compute_domain(self, job: JobView) -> bool:
        """Make sure that the job's ComputeDomain exists: pods wait for the claims that NVIDIA's driver makes of it. It is not watched."""
        await self._ensure(job, COMPUTE_DOMAINS, manifests.compute_domain(job))
        return False

    async def _ensure(
        self, job: JobView, resource: Resource, manifest: dict[str, Any]
    ) -> tuple[Mapping[str, Any], bool]:
        """Return the job's own object of that name, and whether it was created just now."""
        name = manifest["metadata"]["name"]
        try:
            made = await self.writer.create(resource, job.namespace, manifest)
        except ApiError as error:
            if not error.already_exists:
                raise
            # Our own from an earlier reconcile whose response was lost, or an object of another owner.
            found = await self.writer.get(resource, job.namespace, name)
            if found is None or owner_uid(found) != job.uid:
                raise NameConflictError(f"{resource.kind} {name}", _is_predecessors(found, job)) from error
            return found, False
        _LOG.debug(f"created an object kind={resource.kind} name={name}")
        return made, True

    async def _get_owned(self, job: JobView, resource: Resource, name: str) -> Mapping[str, Any] | None:
        """Return the object of that name if the job owns it."""
        found = await self.writer.get(resource, job.namespace, name)
        return found if found is not None and owner_uid(found) == job.uid else None

    async def _delete(self, job: JobView, resource: Resource, name: str, uid: str, reason: Reason) -> bool:
        await self.writer.delete(resource, job.namespace, name, uid=uid)
        _LOG.debug(f"deleted an object kind={resource.kind} name={name} reason={reason}")
        self.tracker.deleted(job.uid, resource.plural, uid)
        return True

    async def _stop(self, job: JobView, name: str, uid: str, reason: Reason) -> bool:
        """Let the pod's node stop the containers. Without the permission, the pod is deleted: it must not hold accelerators."""
        patch = {"metadata": {"uid": uid}, "spec": {"activeDeadlineSeconds": STOP_DEADLINE_SECONDS}}
        try:
            stopped = await self.writer.merge(PODS, job.namespace, name, patch)
        except ApiError as error:
            if error.permission_denied:
                _LOG.warning(f"cannot stop a pod, so it is deleted with its log pod={name}: {error}")
                return await self._delete(job, PODS, name, uid, reason)
            # Another pod has the name, or the pod is gone.
            if error.not_found or (error.conflict and "UID" in error.message):
                return False
            raise
        self.tracker.wrote(job.uid, PODS.plural, int(stopped["metadata"]["resourceVersion"]))
        return True

    async def _remove(self, job: JobView, name: str, uid: str) -> bool:
        """Return whether the pod still existed."""
        found = await self.writer.delete(PODS, job.namespace, name, uid=uid, grace_seconds=0)
        self.tracker.deleted(job.uid, REMOVED, uid)
        return found is not None


def _log_deletions(plan: Plan) -> None:
    """Log one line per reason, for up to hundreds of requests. An event reports created pods once the cache shows them."""
    for reason, count in Counter(a.reason for a in plan.actions if isinstance(a, DeletePod)).items():
        _LOG.info(f"deleted pods count={count} reason={reason}")


def _build_worker_pod(
    worker: Worker,
    agent: AgentImage | None,
    coordinator_endpoint: CoordinatorEndpoint | None,
    metadata: PodMetadata,
    network: NamedProfile | None,
    *,
    orders_ranks: bool,
) -> dict[str, Any]:
    try:
        return manifests.worker_pod(worker, agent, coordinator_endpoint, metadata, network, orders_ranks=orders_ranks)
    except Exception as error:
        # A template that breaks the builder fails its own job, and is never retried for ever.
        raise InvalidTemplateError(f"{type(error).__name__}: {error}") from error


def _is_predecessors(found: Mapping[str, Any] | None, job: JobView) -> bool:
    """Return whether a deleted TrainingJob of the same name owns the object, or whether it is gone by now."""
    owners = found["metadata"].get("ownerReferences") or () if found is not None else None
    return owners is None or any(owner["kind"] == KIND and owner["name"] == job.name for owner in owners)
