"""This process's part in the election: which Lease, under what name, and what is told of it. The rules are in `engine.leader`."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from typing_extensions import override

from trainyard.controller.bootstrap.pod_lock import Seat
from trainyard.controller.bootstrap.settings import Settings
from trainyard.engine.leader import LeaderElector, LeaseTiming
from trainyard.kube.events import EventRecorder, ObjectReference
from trainyard.kube.lease import LEASES, LeaseClient
from trainyard.kube.session import Session


def elector(settings: Settings, session: Session, seat: Seat) -> LeaderElector:
    """A candidate. `session` gives the server and the account; the Lease has connections of its own."""
    own = Session(session.endpoint, on_request=session.on_request, clock=session.clock)
    own.permissions = session.permissions
    # Where the credentials name no namespace, it is the one that kubectl takes too.
    namespace = settings.lease_namespace or session.endpoint.namespace or "default"
    client = LeaseClient(own, namespace, settings.lease_name)
    return LeaderElector(client, seat.name, holder_has_exited=seat.inherits, timing=LeaseTiming(settings.lease_seconds))


def tell_of_leader(events: EventRecorder, elector: LeaderElector) -> None:
    """Say that this process leads where one looks for it: in an event of the Lease, in client-go's words."""
    if elector.lease is None:
        return
    client, uid = elector.client, str(elector.lease.raw["metadata"]["uid"])
    lease = ObjectReference(LEASES.api_version, LEASES.kind, client.namespace, client.name, uid)
    note = f"{elector.identity} became leader"
    events.record(lease, "Normal", "LeaderElection", note, action="Elect", key=note)


@dataclass(frozen=True, eq=False)
class ElectionMetrics(Collector):
    """Under client-go's name, so that existing dashboards fit."""

    elector: LeaderElector
    registry: CollectorRegistry = field(repr=False)

    def __post_init__(self) -> None:
        self.registry.register(self)

    @override
    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Whether this process leads, and how often the leader has changed."""
        name = [self.elector.client.name]
        master = GaugeMetricFamily(
            "leader_election_master_status", "1 where this process leads, 0 where it stands by", labels=["name"]
        )
        master.add_metric(name, float(self.elector.leading))
        yield master
        changes = GaugeMetricFamily(
            "trainyard_leader_transitions", "How often the lease has gone from one to another", labels=["name"]
        )
        changes.add_metric(name, self.elector.lease.transitions if self.elector.lease else 0)
        yield changes
