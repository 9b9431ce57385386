"""The model of all values of the chart. Their meaning and default are in `values.yaml`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from dev.codegen.chart.kubernetes import Affinity, Resources, Spread, Toleration, Variable
from dev.codegen.chart.words import (
    OPTIONAL,
    AlertLabels,
    Annotations,
    Labels,
    Once,
    OptionalDuration,
    OptionalImage,
    OptionalName,
    OptionalSubdomain,
    OwnPort,
    Port,
    Repository,
    Subdomain,
    Switch,
    Text,
    These,
    Values,
)
from trainyard.api.scheduling import GangScheduler
from trainyard.controller.bootstrap.peers import Cidr, Peer
from trainyard.controller.bootstrap.settings import (
    Burst,
    ConcurrentReconciles,
    DeviceProcesses,
    LeaseDurationSeconds,
    LogLevel,
    Name,
    Qps,
    ResourceName,
    TopologyLabel,
)
from trainyard.scheduling.network_profile import NetworkProfile, ProfileName


class OperatorSettings(Values):
    """Settings that the operator reads unchanged."""

    log_level: LogLevel
    concurrent_reconciles: ConcurrentReconciles
    api_qps: Qps
    api_burst: Burst
    http_port: OwnPort
    health_port: OwnPort = OPTIONAL
    accelerators: Annotated[dict[ResourceName, DeviceProcesses], These] = OPTIONAL


class LeaderElection(Switch):
    """The leader election."""

    lease_duration_seconds: LeaseDurationSeconds


class Crds(Switch):
    """The CRD."""

    keep: bool


class Image(Values):
    """The operator's image."""

    repository: Repository
    """Without tag and digest, which are separate values."""
    tag: Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$")] = OPTIONAL
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = OPTIONAL
    pull_policy: Literal["Always", "IfNotPresent", "Never"]


class PullSecret(Values):
    """The name of an existing pull secret."""

    name: Subdomain


class Gangs(Values):
    """The gang schedulers of jobs."""

    schedulers: Annotated[list[GangScheduler], Once] = OPTIONAL
    coscheduling_name: OptionalSubdomain = OPTIONAL


class Agent(Switch):
    """The agent in workers."""

    image: OptionalImage = OPTIONAL
    image_volume: bool = OPTIONAL
    image_pull_secrets: Annotated[list[PullSecret], Once] = OPTIONAL


class Topology(Values):
    """What the operator knows of the network between nodes."""

    read_nodes: bool = OPTIONAL
    labels: Annotated[list[TopologyLabel], Once] = OPTIONAL


class ComputeDomains(Values):
    """The permission on ComputeDomains."""

    enabled: bool = OPTIONAL


class Workers(Values):
    """The workers of all jobs."""

    labels: Labels = OPTIONAL
    annotations: Annotations = OPTIONAL


class Issuer(Values):
    """An issuer of cert-manager."""

    name: Subdomain = OPTIONAL
    kind: Text = OPTIONAL
    group: Text = OPTIONAL


class CertManager(Switch):
    """The certificate by cert-manager."""

    issuer_ref: Issuer = OPTIONAL


class Tls(Values):
    """The coordinator's certificate."""

    existing_secret: OptionalSubdomain = OPTIONAL
    cert_manager: CertManager


class Coordinator(Switch):
    """The coordinator, which agents connect to."""

    port: OwnPort
    tls: Tls


class ApiServer(Values):
    """The addresses and ports of the API server."""

    ports: Annotated[list[Port], Field(min_length=1), Once]
    cidrs: Annotated[list[Cidr], Once] = OPTIONAL


class JobPolicies(Switch):
    """The NetworkPolicies of jobs."""

    from_: Annotated[list[Peer], Field(alias="from")]


class NetworkPolicy(Switch):
    """The NetworkPolicy of the operator."""

    metrics_from: list[Peer] = OPTIONAL
    api_server: ApiServer
    jobs: JobPolicies


class ServiceAccount(Values):
    """The operator's ServiceAccount."""

    create: bool
    name: OptionalSubdomain = OPTIONAL
    annotations: Annotations = OPTIONAL


class Rbac(Values):
    """The operator's and the users' roles."""

    create: bool
    aggregate: bool


class Admission(Switch):
    """The policies of the API server."""

    pod_security: Literal["", "baseline", "restricted"] = OPTIONAL
    guard_service_accounts: bool = OPTIONAL
    system_namespaces: Annotated[list[Name], Once] = OPTIONAL


class MetricsService(Switch):
    """The Service that Prometheus scrapes."""

    port: Port
    annotations: Annotations = OPTIONAL


class Scraped(Switch):
    """How the Prometheus operator scrapes a target."""

    labels: Labels = OPTIONAL
    interval: OptionalDuration = OPTIONAL
    scrape_timeout: OptionalDuration = OPTIONAL


class PodMonitor(Scraped):
    """The PodMonitor of workers."""

    port: Annotated[str, Field(max_length=15, pattern=r"^([0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$")]


class PrometheusRule(Switch):
    """The alerts."""

    labels: Labels = OPTIONAL
    alert_labels: AlertLabels = OPTIONAL
    disabled: Annotated[list[str], Once] = OPTIONAL
    runbook_url: Annotated[str, Field(pattern=r"^(https?://.+)?$")] = OPTIONAL


class Dashboards(Switch):
    """The Grafana dashboards."""

    labels: Labels = OPTIONAL
    annotations: Annotations = OPTIONAL
    namespace: OptionalSubdomain = OPTIONAL


class Metrics(Values):
    """Metrics, alerts and dashboards."""

    service: MetricsService
    service_monitor: Scraped
    pod_monitor: PodMonitor
    prometheus_rule: PrometheusRule
    dashboards: Dashboards


class Chart(Values):
    """Values of the trainyard chart"""

    global_: Annotated[dict[str, Any], Field(alias="global")] = OPTIONAL
    """Helm adds it if the chart is a dependency of another; the templates read imageRegistry and ignore the rest."""
    name_override: OptionalName = OPTIONAL
    fullname_override: OptionalName = OPTIONAL
    common_labels: Labels = OPTIONAL
    crds: Crds
    image: Image
    image_pull_secrets: Annotated[list[PullSecret], Once] = OPTIONAL
    replicas: Annotated[int, Field(ge=1, le=5)]
    leader_election: LeaderElection
    watch_namespaces: Annotated[list[Name], Once]
    settings: OperatorSettings
    gangs: Gangs = OPTIONAL
    agent: Agent
    topology: Topology = OPTIONAL
    compute_domains: ComputeDomains = OPTIONAL
    workers: Workers = OPTIONAL
    network_profiles: Annotated[dict[ProfileName, NetworkProfile], These] = OPTIONAL
    coordinator: Coordinator
    extra_env: list[Variable] = OPTIONAL
    run_as_user: Annotated[int, Field(ge=1, le=2147483647)] | None = OPTIONAL
    resources: Resources = OPTIONAL
    termination_grace_period_seconds: Annotated[int, Field(ge=1, le=3600)]
    pod_annotations: Annotations = OPTIONAL
    pod_labels: Labels = OPTIONAL
    priority_class_name: OptionalSubdomain = OPTIONAL
    node_selector: Labels = OPTIONAL
    tolerations: list[Toleration] = OPTIONAL
    affinity: Affinity = OPTIONAL
    topology_spread_constraints: list[Spread] = OPTIONAL
    pod_disruption_budget: Switch
    network_policy: NetworkPolicy
    service_account: ServiceAccount
    rbac: Rbac
    kueue: Switch
    admission: Admission
    helm_test: Switch
    metrics: Metrics
