"""A worker of an attempt, and what follows for it from the job's template."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.api.network import DnsNames
from trainyard.api.roles import role_and_number
from trainyard.api.spec import Framework, TrainingJobSpec
from trainyard.domain.state.accelerators import TPU, requested
from trainyard.domain.state.object_names import worker_host, worker_pod
from trainyard.domain.state.quantity import quantity
from trainyard.domain.state.roles import role_of
from trainyard.domain.state.snapshot import JobView

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of one attempt, or a member of another role: then `job` is as that role sees it (`JobView.of_member`)."""

    job: JobView
    index: int
    attempt: int
    workers: int
    """The size of its group. `spec.replicas` is what the user requests, which may be another number."""
    rendezvous: str | None = None
    """The address of worker 0, where not all workers started with this attempt."""
    addresses: Sequence[str] = ()
    """The IP addresses of all workers, by index; empty where the framework needs none, and before all of them run."""
    recreated: int = 0
    """How often its pod was created before in this attempt."""

    @property
    def spec(self) -> TrainingJobSpec:
        """The job's spec."""
        return self.job.spec

    @property
    def role(self) -> str:
        """Its role: `worker`, or one of `spec.roles`."""
        return self.role_of(self.index)

    @property
    def number(self) -> int:
        """Its number within its role, from 0."""
        return role_and_number(self.index)[1]

    @property
    def group_rank(self) -> int:
        """Its place in the order of ranks: it has the ranks from this number times the processes of a worker."""
        return self.job.status.group_rank(self.index)

    @property
    def members(self) -> Sequence[int]:
        """The indexes of all members of the group."""
        return self.job.members(self.workers)

    @property
    def of_its_role(self) -> int:
        """How many members its role has."""
        role = role_of(self.spec, self.index)
        return self.workers if role is None else role.replicas

    @staticmethod
    def role_of(index: int) -> str:
        """Return the role of the member with this index."""
        return role_and_number(index)[0]

    @property
    def pod_name(self) -> str:
        """The pod's name, never used twice."""
        return worker_pod(self.job.name, self.index, self.attempt, self.recreated)

    @property
    def host(self) -> str:
        """The pod's host name, the same in each attempt."""
        return worker_host(self.job.name, self.index)

    @property
    def address(self) -> str:
        """The DNS name by which other workers reach this worker, valid within the namespace."""
        return self.address_of(self.index)

    @property
    def master(self) -> str:
        """The address of worker 0."""
        # For some seconds a DNS name may still resolve to the previous pod.
        return self.rendezvous or self.address_of(0)

    def address_of(self, index: int) -> str:
        """Return the DNS name of a worker of the group."""
        # A single worker has no Service and thus no DNS name, unless other workers may join it later.
        alone = len(self.members) == 1 and not self.job.uses_torchrun_rendezvous
        return "localhost" if alone else f"{worker_host(self.job.name, index)}.{self.job.name}"

    @property
    def rendezvous_attempt(self) -> int:
        """The attempt that names the rendezvous: the worker's own, or for workers that meet by torchrun the one in
        which the group was created.
        """
        group = self.job.status.internal.group
        return group.created_in_attempt if group and self.job.uses_torchrun_rendezvous else self.attempt

    @property
    def run_id(self) -> str:
        """The rendezvous id: a straggler of another attempt, or of a job with the same name, cannot join."""
        return f"{self.job.uid}-{self.rendezvous_attempt}"

    def sources(self, names: Iterable[str]) -> Mapping[str, list[str]]:
        """Return where variables of the containers are set: by `the template`, or by `the role NAME`."""
        role = role_of(self.spec, self.index)
        of_role = {str(variable["name"]) for variable in (role.env if role else None) or ()}
        found: dict[str, list[str]] = {}
        for name in sorted(names):
            found.setdefault(f"the role {role.name}" if role and name in of_role else "the template", []).append(name)
        return found

    @property
    def host_network(self) -> bool:
        """Whether the pods use their nodes' network."""
        return bool(self.spec.template["spec"].get("hostNetwork"))


def dns_names(spec: TrainingJobSpec) -> DnsNames:
    """Return which workers get a DNS name: the user's choice, or what the framework needs."""
    if spec.network.dns_names is not None:
        return spec.network.dns_names
    if spec.framework is Framework.JAX:
        # The hosts of a TPU slice reach each other by name.
        has_tpus = any(requested(container, TPU) for container in spec.template["spec"]["containers"])
        return DnsNames.ALL if has_tpus else DnsNames.MASTER
    if spec.framework in {Framework.TENSORFLOW, Framework.PADDLE}:
        return DnsNames.ALL
    if spec.framework is Framework.DMLC or spec.framework.starts_servers:
        # All look for the head, scheduler or server, which has the number 0 in its role.
        return DnsNames.MASTER
    names_others = spec.framework.starts_remotely or not spec.framework.meets_at_worker_0
    return DnsNames.ALL if names_others else DnsNames.MASTER


def command_line(container: Mapping[str, Any]) -> list[str]:
    """Return the command of a container with its arguments, as far as the template has them and not the image."""
    return [*(container.get("command") or ()), *(container.get("args") or ())]


def threads_for_each(worker: Worker, container: Mapping[str, Any]) -> int | None:
    """Return the threads that fit each process of the container; None where neither it nor the pod says how many CPUs it has."""
    available = cpus(container) or cpus(worker.spec.template["spec"])
    return None if available is None else max(1, available // worker.job.processes)


def cpus(requester: Mapping[str, Any]) -> int | None:
    """Return the whole CPUs that a container or a whole pod requests, or None where it has no request."""
    resources: Mapping[str, Any] = requester.get("resources") or {}
    asked = (resources.get("requests") or {}).get("cpu") or (resources.get("limits") or {}).get("cpu")
    amount = quantity(asked)
    return None if amount is None else max(1, int(amount))
