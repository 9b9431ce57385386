"""Set up leader election: which Lease, under which identity, and what is reported about it. The rules are in
`engine.leader`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from trainyard.controller.bootstrap.pod_lock import PodLock
from trainyard.controller.bootstrap.settings import Settings
from trainyard.engine.leader import LeaderElector, LeaseTiming
from trainyard.kube.events import EventRecorder, ObjectReference
from trainyard.kube.lease import LEASES, LeaseClient
from trainyard.kube.session import Session


def create_elector(settings: Settings, session: Session, pod_lock: PodLock) -> LeaderElector:
    """Return a candidate. It takes server and account from `session`, and has its own connections for the Lease."""
    lease_session = Session(session.endpoint, on_request=session.on_request, clock=session.clock)
    lease_session.permissions = session.permissions
    # Credentials without a namespace use the one that kubectl uses.
    namespace = settings.lease_namespace or session.endpoint.namespace or "default"
    client = LeaseClient(lease_session, namespace, settings.lease_name)
    return LeaderElector(
        client,
        pod_lock.identity,
        holder_has_exited=pod_lock.inherits,
        timing=LeaseTiming(settings.lease_duration_seconds),
    )


def record_leader_event(events: EventRecorder, elector: LeaderElector) -> None:
    """Record an event about the Lease that names this process as the leader, in client-go's words."""
    if elector.lease is None:
        return
    client, uid = elector.client, str(elector.lease.raw["metadata"]["uid"])
    lease = ObjectReference(LEASES.api_version, LEASES.kind, client.namespace, client.name, uid)
    note = f"{elector.identity} became leader"
    events.record(lease, "Normal", "LeaderElection", note, action="Elect", key=note)


@dataclass(frozen=True, eq=False)
class ElectionMetrics(Collector):
    """The election as metrics, under client-go's name, so that existing dashboards fit."""

    elector: LeaderElector
    registry: CollectorRegistry = field(repr=False)

    def __post_init__(self) -> None:
        self.registry.register(self)

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield whether this process leads, and how often the leader has changed."""
        name = [self.elector.client.name]
        master = GaugeMetricFamily(
            "leader_election_master_status", "1 if this process is the leader, 0 if it is a standby", labels=["name"]
        )
        master.add_metric(name, float(self.elector.leading))
        yield master
        changes = GaugeMetricFamily(
            "trainyard_leader_transitions", "Changes of the leader since the Lease was created", labels=["name"]
        )
        changes.add_metric(name, self.elector.lease.transitions if self.elector.lease else 0)
        yield changes
