"""Which worker a pod is made for, and what follows from the job's template for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.api.spec import DnsNames, Framework, TrainingJobSpec
from trainyard.domain.state.object_names import worker_host, worker_pod
from trainyard.domain.state.quantity import quantity
from trainyard.domain.state.rank_layout import meets_by_itself
from trainyard.domain.state.snapshot import JobView

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of one attempt."""

    job: JobView
    index: int
    attempt: int
    workers: int
    """The size of its group. `spec.replicas` is what the user requests, which may be another number."""
    rendezvous: str | None = None
    """The address of worker 0, where the workers of this attempt did not all begin with it."""

    @property
    def spec(self) -> TrainingJobSpec:
        """The job's spec."""
        return self.job.spec

    @property
    def pod_name(self) -> str:
        """The pod's name, unique for all time."""
        return worker_pod(self.job.name, self.index, self.attempt)

    @property
    def host(self) -> str:
        """The pod's host name, the same in each attempt."""
        return worker_host(self.job.name, self.index)

    @property
    def address(self) -> str:
        """Where the others find this worker: its DNS name, valid within the namespace."""
        return self._address_of(self.index)

    @property
    def master(self) -> str:
        """The same of worker 0."""
        # A name may lead to the pod before this one for some seconds.
        return self.rendezvous or self._address_of(0)

    def _address_of(self, index: int) -> str:
        # A worker without others has no Service, and so no name; one to which others may come in its life has both.
        alone = self.workers == 1 and not meets_by_itself(self.spec)
        return "localhost" if alone else f"{worker_host(self.job.name, index)}.{self.job.name}"

    @property
    def meeting(self) -> int:
        """The attempt by which the rendezvous is known: its own, or where workers meet by themselves that in which the first of them began."""
        group = self.job.status.internal.group
        return group.created_in_attempt if group and meets_by_itself(self.spec) else self.attempt

    @property
    def run_id(self) -> str:
        """The rendezvous id: a straggler of another attempt, or of a namesake, cannot join."""
        return f"{self.job.uid}-{self.meeting}"

    @property
    def host_network(self) -> bool:
        """Whether the pods share their nodes' network."""
        return bool(self.spec.template["spec"].get("hostNetwork"))


def dns_names(spec: TrainingJobSpec) -> DnsNames:
    """Which workers have a DNS name: those that the user says, else those that the framework asks for."""
    if spec.network.dns_names is not None:
        return spec.network.dns_names
    return DnsNames.MASTER if spec.framework is Framework.TORCH else DnsNames.ALL


def cpus(container: Mapping[str, Any]) -> int | None:
    """Whole CPUs that a container asks for, or None where it does not say."""
    resources: Mapping[str, Any] = container.get("resources") or {}
    asked = (resources.get("requests") or {}).get("cpu") or (resources.get("limits") or {}).get("cpu")
    amount = quantity(asked)
    return None if amount is None else max(1, int(amount))
