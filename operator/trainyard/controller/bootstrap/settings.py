"""What can be set from outside, as `TRAINYARD_*` in the environment; the chart's values are the same names."""

import json
import socket
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from trainyard.controller.bootstrap.peers import Peer
from trainyard.coordinator.address import ALL_ADDRESSES
from trainyard.engine.leader import MAX_LEASE_SECONDS

# The chart's values are of these types too (`dev/codegen/chart/values.py`).
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
"""What a namespace, or the Lease, may be called."""


LogLevel = Literal["debug", "info", "warning", "error"]
Workers = Annotated[int, Field(ge=1, le=256)]
Qps = Annotated[int, Field(ge=1, le=100_000)]
Burst = Annotated[int, Field(ge=1, le=1_000_000)]
LeaseSeconds = Annotated[int, Field(ge=3, le=MAX_LEASE_SECONDS)]


class Settings(BaseSettings):
    """The operator's settings."""

    model_config = SettingsConfigDict(env_prefix="TRAINYARD_", frozen=True, use_attribute_docstrings=True)

    log_level: LogLevel = "info"
    """How much is logged."""
    workers: Workers = 32
    """Jobs that are looked at side by side."""
    api_qps: Qps = 500
    """Requests a second that the API server is asked for at most, when the burst is spent. Watches and the Lease do not count."""
    api_burst: Burst = 1000
    """Requests that may be made at once before that."""
    http_port: int = Field(default=8080, ge=0, le=65535)
    """Port of /metrics, /healthz and /readyz; 0 takes any free one."""
    http_host: str = ALL_ADDRESSES
    """Address on which that port is open: the kubelet's probes and Prometheus come from outside the pod, by IPv4 or IPv6."""
    instance: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,128}$")] = Field(default_factory=socket.gethostname)
    """The name under which this process writes events: its pod's."""
    pod_uid: Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z-]{1,64}$")] | None = None
    """That pod's UID, from the downward API: a container that is started again takes over from itself at once. Not set, or empty: it waits."""
    agent_image: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,512}$")] | None = None
    """The image from which the agent comes into workers: the operator's own. Not set, or empty: none is brought."""
    agent_image_volume: bool = False
    """Whether that image is mounted as a volume in place of the init container: Kubernetes 1.33, containerd 2.1 or CRI-O 1.31 on all nodes."""
    coordinator_url: Annotated[str, StringConstraints(pattern=r"^https://[a-z0-9.-]{1,253}:[0-9]{1,5}$")] | None = None
    """Where the agents of workers reach this operator, as `https://NAME:PORT`. Not set, or empty: they tell nothing."""
    coordinator_port: int = Field(default=8443, ge=0, le=65535)
    """The port on which it listens for them; 0 takes any free one."""
    coordinator_host: str = ALL_ADDRESSES
    """Address on which that port is open: workers come from all nodes, by IPv4 or IPv6."""
    coordinator_tls: Path = Path("/etc/trainyard/tls")
    """The folder with its certificate: `tls.crt`, `tls.key`, and `ca.crt`, by which workers check it."""
    isolate_jobs: bool = False
    """Whether each job gets a NetworkPolicy that lets in its own workers and `job_peers` alone."""
    job_peers: Annotated[tuple[Peer, ...], NoDecode] = ()
    """Who else may reach workers: a JSON list, as in a NetworkPolicy's `from`."""
    context: str | None = None
    """The kubeconfig context to use outside a cluster."""
    relist_seconds: float = Field(default=300.0, ge=1, allow_inf_nan=False)
    """How often all TrainingJobs are listed, in case the watch has missed one."""
    stale_seconds: float = Field(default=150.0, ge=1, allow_inf_nan=False)
    """After so long without a sign of life a watch is stale, and the probes fail."""
    namespaces: Annotated[tuple[Name, ...], NoDecode] = ()
    """The namespaces whose TrainingJobs are looked after, with commas between them; empty: all."""
    leader_election: bool = True
    """Whether several processes agree on one that acts, by a Lease. Without it there must never be two."""
    lease_name: Name = "trainyard"
    """The Lease. Processes that look after the same jobs need the same one."""
    lease_namespace: Name | None = None
    """Where the Lease is; else the namespace of this pod, or of the kubeconfig's context."""
    lease_seconds: LeaseSeconds = 15
    """After so long without a sign of the leader another process takes over."""

    @field_validator("agent_image", "coordinator_url", "pod_uid", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return value or None

    @field_validator("job_peers", mode="before")
    @classmethod
    def _from_json(cls, value: object) -> object:
        return json.loads(value or "[]") if isinstance(value, str) else value

    @field_validator("namespaces", mode="before")
    @classmethod
    def _with_commas(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        names = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        if value and not names:
            raise ValueError("no namespace is named; leave it out, or empty, to look after all of them")
        return names
