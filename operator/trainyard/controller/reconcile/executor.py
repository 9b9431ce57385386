"""Carries out a plan's actions. Decides nothing; each action is harmless when repeated."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, assert_never

from trainyard.api.reasons import Reason
from trainyard.controller.reconcile.caches import REMOVED, Caches
from trainyard.controller.reconcile.container_restarts import ContainerRestarts
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.domain.actions import Action, CreateService, CreateWorker, DeleteJob, DeletePod, Plan, RemovePod
from trainyard.domain.state.observe import owner_uid
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.status.pod_rejections import Refusal
from trainyard.domain.wording import counted
from trainyard.engine.batch import Done, Failed, slow_start
from trainyard.engine.tracker import WriteTracker
from trainyard.frameworks import manifests
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.frameworks.worker_spec import Worker
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import NETWORK_POLICIES, PODS, SERVICES, Resource

_LOG = logging.getLogger(__name__)

PARALLEL = 100
"""Requests at a time for one job, once the first have succeeded. With 50 the pods of a job of 500 are created in 1.4 times the time that
a plain client takes, with 100 in 1.1: what they wait for is their share of the API server."""


@dataclass(frozen=True, slots=True)
class NameTakenError(Exception):
    """An object with the wanted name belongs to somebody else, perhaps to a deleted namesake whose pods still go."""

    what: str


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a plan's actions."""

    refusal: Refusal | None = None
    """The first refusal; after it nothing more was tried."""
    changed: bool = False
    """Whether anything was created or deleted that was not so before, and that will be seen in a moment."""


class UnbuildableError(Exception):
    """The template holds something of which no manifest can be made, and which the API server's schema lets pass."""


@dataclass(frozen=True, slots=True)
class Executor:
    """Actions into requests."""

    writer: Writer
    tracker: WriteTracker[str]
    caches: Caches
    restarts: ContainerRestarts
    agent: AgentImage | None = None
    """Where the agent in workers comes from; None: none is brought."""
    contact: Callable[[], CoordinatorEndpoint | None] = lambda: None
    """How the agents of new workers reach the operator."""
    peers: Sequence[dict[str, Any]] | None = None
    """Who reaches workers beside those of their own job, by a NetworkPolicy for each job; None: there is none."""
    spared: set[str] = field(default_factory=set)
    """UIDs of pods whose removal was refused: this process asks for each once."""

    async def carry_out(self, job: JobView, plan: Plan) -> Result:
        """Do all of it but removals, in order: the Service, then deletions, then new pods, behind their NetworkPolicy. Stops at the first
        refusal.

        Raises ApiError where the server does not answer or fails: then nobody knows, and the next pass looks anew.
        """
        changed = False
        for kind, calls in self._calls(job, plan):
            try:
                outcomes = await slow_start(calls, limit=PARALLEL)
            except NameTakenError as error:
                taken = f"{error.what} exists and does not belong to this TrainingJob"
                return Result(Refusal(Reason.NAME_CONFLICT, taken), changed)
            except UnbuildableError as error:
                return Result(Refusal(Reason.INVALID_TEMPLATE, str(error)), changed)
            changed |= any(isinstance(o, Done) and o.value for o in outcomes)
            if failed := next((o.error for o in outcomes if isinstance(o, Failed)), None):
                return Result(_refusal(failed, kind), changed)
        _tell(plan)
        return Result(changed=changed)

    async def remove(self, job: JobView, plan: Plan) -> list[RemovePod]:
        """Delete pods by force; returns those that were still there. Before all else, since new pods may wait for their quota.

        A refusal is told in the log and is no verdict on the job: it lived with these pods until now.
        """
        removals = [a for a in plan.actions if isinstance(a, RemovePod) and a.uid not in self.spared]
        calls = [self._call(job, removal) for removal in removals]
        removed = []
        for removal, outcome in zip(removals, await slow_start(calls, limit=PARALLEL), strict=True):
            match outcome:
                case Done(True):
                    removed.append(removal)
                case Failed(error):
                    if not error.retryable:
                        self.spared.add(removal.uid)
                    _LOG.warning(f"pod {removal.name} cannot be deleted by force: {error}")
                case _:
                    pass  # it was gone already, or comes later
        return removed

    def _calls(self, job: JobView, plan: Plan) -> Iterator[tuple[Resource | None, list[Callable[[], Awaitable[bool]]]]]:
        """Those that may be made side by side, group after group, and of what kind are the objects that they make."""
        groups = ((SERVICES, (CreateService,)), (None, (DeletePod, DeleteJob)), (PODS, (CreateWorker,)))
        for makes, kinds in groups:
            calls = [self._call(job, action) for action in plan.actions if isinstance(action, kinds)]
            if not calls:
                continue
            if CreateWorker in kinds and self.peers is not None:
                yield NETWORK_POLICIES, [partial(self._isolate, job, self.peers)]
            yield makes, calls

    def _call(self, job: JobView, action: Action) -> Callable[[], Awaitable[bool]]:
        match action:
            case CreateService():
                return lambda: self._create(job, SERVICES, manifests.service(job))
            case CreateWorker(index, attempt, workers):
                worker = Worker(job, index, attempt, workers)
                return lambda: self._make(job, worker)
            case DeletePod(name, uid, reason):
                return lambda: self._delete(job, PODS, name, uid, reason)
            case DeleteJob(reason):
                return lambda: self._delete(job, TRAINING_JOBS, job.name, job.uid, reason)
            case RemovePod(name, uid):
                return lambda: self._force(job, name, uid)
            case _:
                assert_never(action)

    async def _make(self, job: JobView, worker: Worker) -> bool:
        plain = _worker_pod(worker, self.agent, self.contact())
        manifest = await self.restarts.granted(job.namespace, plain)
        try:
            return await self._create(job, PODS, manifest)
        except ApiError as error:
            if manifest is plain or not self.restarts.refused(job.namespace, error):
                raise
        return await self._create(job, PODS, plain)

    async def _create(self, job: JobView, resource: Resource, manifest: dict[str, Any]) -> bool:
        """Whether there is something new: it was made, or it was there and the caches did not know."""
        cache, new = self.caches.of(job.namespace), True
        found, fresh = await self._ensure(job, resource, manifest)
        if not fresh:
            new = cache.notice(resource, found)
        elif resource == PODS:
            # The answer is its metadata alone.
            cache.made({**manifest, "metadata": found["metadata"]})
        self.tracker.wrote(job.uid, resource.plural, int(found["metadata"]["resourceVersion"]))
        return new

    async def _isolate(self, job: JobView, peers: Sequence[dict[str, Any]]) -> bool:
        """Nothing is seen of it later: by the server's word it stands before the workers are asked for, whoever has deleted it meanwhile."""
        manifest = manifests.network_policy(job, peers)
        try:
            await self._ensure(job, NETWORK_POLICIES, manifest)
        except ApiError as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            # What is wrong about the peers of now does not make the job's own policy of earlier ones worse.
            if await self._own(job, NETWORK_POLICIES, manifest["metadata"]["name"]) is None:
                raise
        return False

    async def _ensure(
        self, job: JobView, resource: Resource, manifest: dict[str, Any]
    ) -> tuple[Mapping[str, Any], bool]:
        """The job's own object of that name, and whether it was made just now."""
        name = manifest["metadata"]["name"]
        try:
            made = await self.writer.create(resource, job.namespace, manifest)
        except ApiError as error:
            if not error.already_exists:
                raise
            # Our own, made in a pass whose answer was lost, or somebody else's.
            found = await self._own(job, resource, name)
            if found is None:
                raise NameTakenError(f"{resource.kind} {name}") from error
            return found, False
        _LOG.debug(f"created {resource.kind} {name}")
        return made, True

    async def _own(self, job: JobView, resource: Resource, name: str) -> Mapping[str, Any] | None:
        """The object of that name, where it is the job's."""
        found = await self.writer.get(resource, job.namespace, name)
        return found if found is not None and owner_uid(found) == job.uid else None

    async def _delete(self, job: JobView, resource: Resource, name: str, uid: str, reason: Reason) -> bool:
        await self.writer.delete(resource, job.namespace, name, uid=uid)
        _LOG.debug(f"deleted {resource.kind} {name}: {reason}")
        self.tracker.deleted(job.uid, resource.plural, uid)
        return True

    async def _force(self, job: JobView, name: str, uid: str) -> bool:
        """Whether it was still there."""
        found = await self.writer.delete(PODS, job.namespace, name, uid=uid, grace_seconds=0)
        self.tracker.deleted(job.uid, REMOVED, uid)
        return found is not None


def _tell(plan: Plan) -> None:
    """One line for what may have been five hundred requests. That pods were created is told by an event, once they are seen."""
    for reason, count in Counter(a.reason for a in plan.actions if isinstance(a, DeletePod)).items():
        _LOG.info(f"deleted {counted(count, 'pod')}: {reason}")


def _worker_pod(worker: Worker, agent: AgentImage | None, contact: CoordinatorEndpoint | None) -> dict[str, Any]:
    try:
        return manifests.worker_pod(worker, agent, contact)
    except Exception as error:
        # Whatever one template does to the builder, it is a verdict on that template: never a pass repeated for ever.
        raise UnbuildableError(f"{type(error).__name__}: {error}") from error


def without_right(error: ApiError) -> str:
    """What is missing and what to do. The server's own sentence names verb, resource and namespace."""
    return f"the operator's service account lacks a right, which whoever installed it has to grant: {error.message}"


def _refusal(error: ApiError, kind: Resource | None) -> Refusal:
    """What the server's answer to making such an object, or to a deletion, means for the job. Raises `error` where it means nothing but "later"."""
    if error.retryable or error.namespace_terminating or error.conflict:
        raise error
    if error.permission_denied:
        return Refusal(Reason.PERMISSION_DENIED, without_right(error))
    if error.quota_exceeded:
        return Refusal(Reason.QUOTA_EXCEEDED, error.message)
    if kind == NETWORK_POLICIES:
        told = f"no worker without its NetworkPolicy, which the API server refuses (networkPolicy.jobs of the operator's chart): {error.message}"
        return Refusal(Reason.NETWORK_POLICY_REJECTED, told)
    # The verdict of a webhook or an admission policy comes with whatever status it likes, and the policy can change.
    by_policy = error.message.startswith("admission webhook") or " is forbidden: " in error.message
    if kind == PODS and error.status in {400, 422} and not by_policy:
        return Refusal(Reason.INVALID_TEMPLATE, error.message)
    return Refusal(Reason.PODS_FORBIDDEN, error.message)
