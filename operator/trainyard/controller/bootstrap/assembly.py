"""Create the components of the operator, and connect them. Decides nothing."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from trainyard.api.constants import CONTROLLER_NAME
from trainyard.controller.bootstrap.certificate_keeper import CertificateKeeper
from trainyard.controller.bootstrap.certificate_source import create_certificate_source
from trainyard.controller.bootstrap.election import ElectionMetrics, create_elector
from trainyard.controller.bootstrap.health import Health
from trainyard.controller.bootstrap.operator import Operator
from trainyard.controller.bootstrap.pod_lock import acquire_pod_lock
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.kopf_adapter.watch_scope import WatchScope
from trainyard.controller.metrics.collector import CacheMetrics, JobMetrics, register_clock_offset
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.container_restarts import ContainerRestartSupport
from trainyard.controller.reconcile.coordination import coordinator_endpoint, create_coordinator
from trainyard.controller.reconcile.executor import Executor
from trainyard.controller.reconcile.gang_discovery import GangDiscovery
from trainyard.controller.reconcile.node_places import NodePlaces, NodeRecord
from trainyard.controller.reconcile.pod_events import PodEvents
from trainyard.controller.reconcile.pod_groups import PodGroups
from trainyard.controller.reconcile.reconciler import Reconciler
from trainyard.controller.reconcile.status_pace import StatusPace
from trainyard.controller.reconcile.workloads import Workloads
from trainyard.domain.state.accelerators import ACCELERATORS
from trainyard.engine.leader import NotLeadingError
from trainyard.engine.loop import ReconcileLoop
from trainyard.engine.queue import WorkQueue
from trainyard.engine.queue_metrics import EngineMetrics
from trainyard.engine.tracker import WriteTracker
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.pod_metadata import PodMetadata
from trainyard.kube.apply import Writer
from trainyard.kube.events import EventRecorder
from trainyard.kube.permissions import PermissionTracker
from trainyard.kube.reflector import Reflector
from trainyard.kube.resource import NODES
from trainyard.kube.session import Session
from trainyard.scheduling.known_networks import KNOWN_NETWORKS
from trainyard.scheduling.network_profile import with_own


def assemble(
    settings: Settings,
    session: Session,
    metrics: EngineMetrics,
    registry: CollectorRegistry,
) -> Operator:
    """Create all components; none of them runs yet. Raises CertificateError."""
    _count_forbidden_requests(session.permissions, registry)
    pod_lock = acquire_pod_lock(settings.instance, settings.pod_uid if settings.leader_election else None)
    elector = create_elector(settings, session, pod_lock) if settings.leader_election else None
    if elector is not None:
        session.permit = elector.permit
        ElectionMetrics(elector, registry)
    places = NodePlaces(settings.topology_labels)
    caches = Caches.empty(settings.namespaces, {**ACCELERATORS, **settings.accelerators}, places, kueue=settings.kueue)
    queue: WorkQueue[str] = WorkQueue(observer=metrics.observer)
    scopes = [
        WatchScope(session, namespace, cache, queue, settings.relist_seconds)
        for namespace, cache in caches.by_namespace.items()
    ]
    tracker: WriteTracker[str] = WriteTracker()
    writer = Writer(session)
    leading = (lambda: elector.leading) if elector is not None else lambda: True

    def is_reconciled(namespace: str) -> bool:
        return all(scope.opened for scope in scopes if scope.namespace in {None, namespace})

    coordinator = create_coordinator(settings, session, caches, queue, registry, leading, is_reconciled)
    certificate_source = (
        create_certificate_source(settings, session, coordinator.certificate, registry) if coordinator else None
    )
    pace = StatusPace(time.monotonic)
    restart_support = ContainerRestartSupport(writer)
    workloads = Workloads(writer, tracker, caches, session.clock.whole_second) if settings.kueue else None
    discovery = GangDiscovery(session, settings.gang_schedulers, settings.coscheduling_name)
    reconciler = Reconciler(
        caches=caches,
        executor=Executor(
            writer,
            tracker,
            caches,
            restart_support,
            _agent_source(settings),
            lambda: coordinator_endpoint(settings, coordinator),
            _job_peers(settings),
            PodMetadata().overridden(settings.worker_labels, settings.worker_annotations),
            with_own(KNOWN_NETWORKS, settings.network_profiles),
            ranks_follow_placement=settings.read_nodes,
            pod_groups=PodGroups(writer, discovery) if discovery.permitted else None,
            workloads=workloads,
        ),
        writer=writer,
        tracker=tracker,
        events=EventRecorder(session, CONTROLLER_NAME, settings.instance, busy=lambda: pace.busy),
        metrics=JobMetrics(registry),
        pace=pace,
        now=session.clock.whole_second,
        progress_store=coordinator.progress_store if coordinator else None,
        agent_registry=coordinator.agent_registry if coordinator else None,
        pod_events=PodEvents(session, time.monotonic),
        workloads=workloads,
    )
    loop = ReconcileLoop(
        queue,
        _while_leading(reconciler.reconcile),
        workers=settings.concurrent_reconciles,
        observer=metrics.observer,
    )
    metrics.watch(queue, loop)
    CacheMetrics(caches, registry, leading=leading)
    register_clock_offset(session.clock, registry)
    watches = [watch for scope in scopes for watch in scope.watches()]
    leadership = elector.describe if elector is not None else str
    certificate = certificate_source.obstacle if isinstance(certificate_source, CertificateKeeper) else str
    health = Health(
        watches, queue.longest_work, settings.stale_seconds, session.permissions, leadership, certificate, registry
    )
    return Operator(
        settings=settings,
        session=session,
        registry=registry,
        caches=caches,
        scopes=scopes,
        nodes=_node_reflector(session, places) if settings.read_nodes else None,
        reconciler=reconciler,
        loop=loop,
        health=health,
        pod_lock=pod_lock,
        elector=elector,
        coordinator=coordinator,
        certificate_source=certificate_source,
        gang_discovery=discovery,
    )


def _node_reflector(session: Session, places: NodePlaces) -> Reflector[NodeRecord, str]:
    """Return the watch on nodes. No job is reconciled because of it: only groups that start ask for places."""
    return Reflector(session, NODES, places.record, places.nodes, lambda _: None)


def _while_leading(
    reconcile: Callable[[str], Awaitable[float | None]],
) -> Callable[[str], Awaitable[float | None]]:
    """Wrap `reconcile` so that a reconcile that may no longer write returns silently. The process is about to exit."""

    async def reconcile_or_stop(uid: str) -> float | None:
        try:
            return await reconcile(uid)
        except NotLeadingError:
            return None

    return reconcile_or_stop


def _job_peers(settings: Settings) -> list[dict[str, Any]] | None:
    if not settings.isolate_jobs:
        return None
    return [{**peer} for peer in settings.job_peers]


def _agent_source(settings: Settings) -> AgentImage | None:
    if not settings.agent_image:
        return None
    return AgentImage(settings.agent_image, settings.agent_image_volume, settings.agent_pull_secrets)


def _count_forbidden_requests(permissions: PermissionTracker, registry: CollectorRegistry) -> None:
    forbidden = Counter(
        "trainyard_forbidden_requests",
        "Requests refused because the operator's account lacks a permission",
        ["verb", "resource"],
        registry=registry,
    )
    permissions.on_refused = lambda permission: forbidden.labels(permission.verb, permission.resource).inc()
