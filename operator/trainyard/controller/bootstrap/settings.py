"""Read the operator's settings from `TRAINYARD_*` in the environment. The chart's values have the same names."""

import json
import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from trainyard.api.names import MAX_QUALIFIED, ObjectName
from trainyard.api.scheduling import GangScheduler
from trainyard.api.spec import MAX_PROCESSES_PER_REPLICA
from trainyard.controller.bootstrap.peers import LabelValue, Peer, QualifiedName
from trainyard.coordinator.address import ALL_ADDRESSES
from trainyard.domain.state.gang_schedulers import COSCHEDULING_SCHEDULER
from trainyard.engine.leader import MAX_LEASE_SECONDS
from trainyard.scheduling.known_networks import KNOWN_NETWORKS
from trainyard.scheduling.network_profile import NetworkProfile, ProfileName, with_own
from trainyard.scheduling.topology_labels import TOPOLOGY_LABELS

# The chart's values use these types too (`dev/codegen/chart/values.py`).
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""A valid name of a namespace or of the Lease."""
ResourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.*-]{1,253}/[A-Za-z0-9._*-]{1,63}$")]
"""The name of an extended resource. `*` stands for any characters."""
TopologyLabel = Annotated[
    str, StringConstraints(max_length=MAX_QUALIFIED, pattern=r"^[A-Za-z0-9]([A-Za-z0-9./_-]*[A-Za-z0-9])?$")
]
"""The key of a node's label."""
DeviceProcesses = Annotated[int, Field(ge=1, le=MAX_PROCESSES_PER_REPLICA)] | Literal["worker", "none"]
LogLevel = Literal["debug", "info", "warning", "error"]
ConcurrentReconciles = Annotated[int, Field(ge=1, le=256)]
Qps = Annotated[int, Field(ge=1, le=100_000)]
Burst = Annotated[int, Field(ge=1, le=1_000_000)]
LeaseDurationSeconds = Annotated[int, Field(ge=3, le=MAX_LEASE_SECONDS)]


class Settings(BaseSettings):
    """The operator's settings."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", frozen=True, use_attribute_docstrings=True)

    log_level: LogLevel = "info"
    """Least severe level that is logged."""
    concurrent_reconciles: ConcurrentReconciles = 32
    """Jobs that are reconciled concurrently."""
    api_qps: Qps = 500
    """Most requests per second to the API server, once the burst is used up. Watches and the Lease do not count."""
    api_burst: Burst = 1000
    """Requests that may be made at once before that."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """Port of /metrics; 0 takes any free one."""
    health_port: int = Field(default=8081, ge=0, le=65535)
    """Port of /healthz and /readyz; 0 takes any free one."""
    http_host: str = ALL_ADDRESSES
    """Address of these ports. The kubelet's probes and Prometheus connect from outside the pod, by IPv4 or IPv6."""
    instance: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")] = Field(default_factory=socket.gethostname)
    """The name under which this process writes events: its pod's name."""
    pod_uid: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]{1,64}$")] | None = None
    """That pod's UID, from the downward API. A restarted container takes over its own pod's Lease at once. Not set, or
    empty: it waits for the Lease to expire.
    """
    agent_image: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,512}$")] | None = None
    """The image that holds the agent: the operator's own. Not set, or empty: no agent is injected."""
    agent_image_volume: bool = False
    """Whether that image is mounted as a volume instead of copied by an init container. All nodes need Kubernetes 1.33,
    and containerd 2.1 or CRI-O 1.31.
    """
    agent_pull_secrets: Annotated[tuple[ObjectName, ...], NoDecode] = ()
    """Secrets of the jobs' namespaces with which nodes pull that image, separated by commas."""
    coordinator_url: Annotated[str, StringConstraints(pattern=r"^https://[a-z0-9.-]{1,253}:[0-9]{1,5}$")] | None = None
    """Where agents reach this operator, as `https://NAME:PORT`. Not set, or empty: agents report nothing."""
    coordinator_port: int = Field(default=8443, ge=0, le=65535)
    """The port on which it listens for agents; 0 takes any free one."""
    coordinator_host: str = ALL_ADDRESSES
    """Address of that port. Workers connect from all nodes, by IPv4 or IPv6."""
    coordinator_tls: Path = Path("/etc/trainyard/tls")
    """The folder with its certificate: `tls.crt`, `tls.key`, and `ca.crt`, which workers verify it with."""
    coordinator_secret: ObjectName | None = None
    """The Secret in the operator's namespace in which it keeps a certificate that it issues and renews itself. The
    certificate of the folder, if there is one, is its first. Not set, or empty: the folder's, which others renew."""
    isolate_jobs: bool = False
    """Whether each job gets a NetworkPolicy that admits only its own workers and `job_peers`."""
    job_peers: Annotated[tuple[Peer, ...], NoDecode] = ()
    """Other peers that may reach workers: a JSON list, as in a NetworkPolicy's `from`."""
    accelerators: Annotated[dict[ResourceName, DeviceProcesses], NoDecode] = {}
    """More extended resources for `processesPerReplica: auto`, as a JSON object from names, which may contain `*`. The value is the
    number of processes for each device, `worker` (one process for all devices of a worker), or `none` (no accelerator)."""
    worker_labels: Annotated[dict[QualifiedName, LabelValue], NoDecode] = {}
    """More labels of all workers, as a JSON object. A value in a job's template replaces them."""
    worker_annotations: Annotated[dict[QualifiedName, str], NoDecode] = {}
    """More annotations of all workers, as a JSON object. A value in a job's template replaces them."""
    kueue: bool = False
    """Whether jobs may wait in queues of Kueue. Needs the permissions of `kueue.enabled` of the chart."""
    network_profiles: Annotated[dict[ProfileName, NetworkProfile], NoDecode] = {}
    """More network profiles for `network.profile`, as a JSON object by name. They extend or replace the known ones."""
    read_nodes: bool = False
    """Whether the operator reads the labels of all nodes, so that ranks follow the topology of the network by default. It needs permission
    to list and watch nodes."""
    topology_labels: Annotated[tuple[TopologyLabel, ...], NoDecode] = TOPOLOGY_LABELS
    """The labels that name the place of a node in the network, the widest part first, separated by commas. Empty: those of the clouds
    and of Topograph."""
    gang_schedulers: Annotated[tuple[GangScheduler, ...], NoDecode] = ()
    """The gang schedulers whose PodGroups the operator may create (`native`, `volcano`, `coscheduling`), the preferred one first,
    separated by commas. It asks the API server once which of them there are."""
    coscheduling_name: ObjectName = COSCHEDULING_SCHEDULER
    """The `schedulerName` of the scheduler that has the plugin Coscheduling."""
    context: str | None = None
    """The kubeconfig context to use outside a cluster."""
    relist_seconds: float = Field(default=300.0, ge=1, allow_inf_nan=False)
    """Seconds between two lists of all TrainingJobs, which find changes that the watch missed."""
    stale_seconds: float = Field(default=150.0, ge=1, allow_inf_nan=False)
    """Seconds of silence after which a watch is stale and the probes fail."""
    namespaces: Annotated[tuple[Name, ...], NoDecode] = ()
    """The namespaces whose TrainingJobs are managed, separated by commas; empty: all."""
    leader_election: bool = True
    """Whether several processes elect a leader by a Lease. Without an election there must never be two processes."""
    lease_name: Name = "trainyard"
    """The Lease. Processes that manage the same jobs need the same one."""
    lease_namespace: Name | None = None
    """The namespace of the Lease; by default that of this pod, or of the kubeconfig's context."""
    lease_duration_seconds: LeaseDurationSeconds = 15
    """Seconds without a renewal after which another process takes over."""

    @field_validator("agent_image", "coordinator_url", "coordinator_secret", "pod_uid", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return value or None

    @field_validator("network_profiles", mode="after")
    @classmethod
    def _with_known_bases(cls, value: dict[str, NetworkProfile]) -> dict[str, NetworkProfile]:
        with_own(KNOWN_NETWORKS, value)
        return value

    @field_validator(
        *("job_peers", "accelerators", "worker_labels", "worker_annotations", "network_profiles"), mode="before"
    )
    @classmethod
    def _from_json(cls, value: object, info: ValidationInfo) -> object:
        empty = "[]" if info.field_name == "job_peers" else "{}"
        return json.loads(value or empty) if isinstance(value, str) else value

    @field_validator("topology_labels", mode="before")
    @classmethod
    def _labels(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip())) or TOPOLOGY_LABELS

    @field_validator("agent_pull_secrets", "gang_schedulers", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @field_validator("namespaces", mode="before")
    @classmethod
    def _with_commas(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if value and not names:
            raise ValueError("no namespace is named; leave it empty to manage all of them")
        return names
