"""All values of the chart, as `values.yaml` has them with what they mean and what they are by default."""

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
    Values,
)
from trainyard.controller.bootstrap.peers import Cidr, Peer
from trainyard.controller.bootstrap.settings import Burst, LeaseSeconds, LogLevel, Name, Qps, Workers


class OperatorSettings(Values):
    """What the operator reads as it is."""

    log_level: LogLevel
    workers: Workers
    api_qps: Qps
    api_burst: Burst
    http_port: OwnPort


class LeaderElection(Switch):
    """Who acts."""

    lease_seconds: LeaseSeconds


class Crds(Switch):
    """The CRD."""

    keep: bool


class Image(Values):
    """The operator's image."""

    repository: Repository
    """Without tag and digest: they have values of their own."""
    tag: Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$")] = OPTIONAL
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = OPTIONAL
    pull_policy: Literal["Always", "IfNotPresent", "Never"]


class PullSecret(Values):
    """One that is there already."""

    name: Subdomain


class Agent(Switch):
    """The agent in workers."""

    image: OptionalImage = OPTIONAL
    image_volume: bool = OPTIONAL


class Issuer(Values):
    """Of cert-manager."""

    name: Subdomain = OPTIONAL
    kind: Text = OPTIONAL
    group: Text = OPTIONAL


class CertManager(Switch):
    """Who makes the Secret."""

    issuer_ref: Issuer = OPTIONAL


class Tls(Values):
    """The coordinator's certificate."""

    existing_secret: OptionalSubdomain = OPTIONAL
    cert_manager: CertManager


class Coordinator(Switch):
    """Who hears the agents."""

    port: OwnPort
    tls: Tls


class ApiServer(Values):
    """Where the operator may go."""

    ports: Annotated[list[Port], Field(min_length=1), Once]
    cidrs: Annotated[list[Cidr], Once] = OPTIONAL


class JobPolicies(Switch):
    """In front of workers."""

    from_: Annotated[list[Peer], Field(alias="from")]


class NetworkPolicy(Switch):
    """In front of the operator."""

    metrics_from: list[Peer] = OPTIONAL
    api_server: ApiServer
    jobs: JobPolicies


class ServiceAccount(Values):
    """The operator's."""

    create: bool
    name: OptionalSubdomain = OPTIONAL
    annotations: Annotations = OPTIONAL


class Rbac(Values):
    """Roles."""

    create: bool
    aggregate: bool


class Admission(Switch):
    """Policies of the API server."""

    pod_security: Literal["", "baseline", "restricted"] = OPTIONAL
    guard_service_accounts: bool = OPTIONAL


class MetricsService(Switch):
    """What a Prometheus scrapes."""

    port: Port
    annotations: Annotations = OPTIONAL


class Scraped(Switch):
    """How the Prometheus operator has something scraped."""

    labels: Labels = OPTIONAL
    interval: OptionalDuration = OPTIONAL
    scrape_timeout: OptionalDuration = OPTIONAL


class PodMonitor(Scraped):
    """Of workers."""

    port: Annotated[str, Field(max_length=15, pattern=r"^([0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$")]


class PrometheusRule(Switch):
    """The alerts."""

    labels: Labels = OPTIONAL
    alert_labels: AlertLabels = OPTIONAL
    disabled: Annotated[list[str], Once] = OPTIONAL
    runbook_url: Annotated[str, Field(pattern=r"^(https?://.+)?$")] = OPTIONAL


class Dashboards(Switch):
    """Grafana's."""

    labels: Labels = OPTIONAL
    annotations: Annotations = OPTIONAL
    namespace: OptionalSubdomain = OPTIONAL


class Metrics(Values):
    """What there is to see."""

    service: MetricsService
    service_monitor: Scraped
    pod_monitor: PodMonitor
    prometheus_rule: PrometheusRule
    dashboards: Dashboards


class Chart(Values):
    """Values of the trainyard chart"""

    global_: Annotated[dict[str, Any], Field(alias="global")] = OPTIONAL
    """Helm adds it where the chart is a dependency of another; nothing in it is read."""
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
    agent: Agent
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
    admission: Admission
    helm_test: Switch
    metrics: Metrics
