"""metrics-server, Prometheus and prometheus-adapter beside a cluster that is up: what `kubectl top` and HorizontalPodAutoscalers ask.

They are processes of the host, as the control plane's are. The first and the last serve APIs of their own: the API server forwards
requests to them at the bridge's address. Prometheus listens on loopback.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from dev.localcluster import processes
from dev.localcluster.addresses import ADAPTER_PORT, GATEWAY, METRICS_SERVER_PORT, PROMETHEUS_PORT, PROMETHEUS_URL
from dev.localcluster.api import Api, ApiUnavailableError, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dev.localcluster.paths import Paths

NAMESPACE: Final = "kube-system"
READY_SECONDS: Final = 120.0
SCRAPE_SECONDS: Final = 5
LISTED_SECONDS: Final = 10
"""How often metrics-server asks the kubelets, and the adapter which series there are: as often as the former can."""
SERVICES: Final = {"metrics-server": METRICS_SERVER_PORT, "prometheus-adapter": ADAPTER_PORT}
DAEMONS: Final = (*SERVICES, "prometheus")
PROGRAMS: Final = {"metrics-server": "metrics-server", "prometheus-adapter": "adapter", "prometheus": "prometheus"}
"""By daemon, the program that it is."""
APIS: Final = (
    ("metrics.k8s.io", "v1beta1", "metrics-server"),
    ("custom.metrics.k8s.io", "v1beta1", "prometheus-adapter"),
    ("custom.metrics.k8s.io", "v1beta2", "prometheus-adapter"),
)


def start(paths: Paths, tools: dict[str, Path], names: Sequence[str], rules: Sequence[Path] = ()) -> None:
    """Starts what does not run yet of these daemons, Prometheus with these files of rules, and waits until their APIs answer.

    Raises:
        LocalClusterError: it does not come to that.
    """
    arguments: dict[str, Callable[[], list[str]]] = {
        "metrics-server": lambda: _metrics_server(paths),
        "prometheus": lambda: _prometheus(paths, rules),
        "prometheus-adapter": lambda: _adapter(paths),
    }
    for name in names:
        if processes.alive(paths, name) is None:
            processes.start(paths, name, (tools[PROGRAMS[name]], *arguments[name]()))
    api = Api(paths.pki)
    authority = base64.b64encode((paths.pki / "ca.crt").read_bytes()).decode()
    for name, port in SERVICES.items():
        if name not in names:
            continue
        api.create(f"/api/v1/namespaces/{NAMESPACE}/services", service(name))
        api.create(f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", endpoints(name, port))
    apis = [each for each in APIS if each[2] in names]
    for group, version, name in apis:
        api.create("/apis/apiregistration.k8s.io/v1/apiservices", api_service(group, version, name, authority))

    def ready() -> bool:
        return all(_answers(api, group, version) for group, version, _ in apis)

    def obstacle() -> str:
        ended = [name for name in names if processes.alive(paths, name) is None]
        return f"{', '.join(ended)} has ended" if ended else ""

    failure = f"the metrics' APIs do not answer: see the logs in {paths.logs}"
    wait_until(ready, seconds=READY_SECONDS, failure=failure, obstacle=obstacle)


def scrapes(paths: Paths, rules: Sequence[Path] = ()) -> dict[str, Any]:
    """Prometheus' configuration: all running pods that name a port `metrics`, those behind a Service of the name `…-metrics`, the kubelets."""
    meta = "__meta_kubernetes"
    of_pods = [
        {"source_labels": [f"{meta}_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{meta}_pod_name"], "target_label": "pod"},
        {"action": "keep", "source_labels": [f"{meta}_pod_phase"], "regex": "Running"},
    ]

    def scrape(name: str, role: str, relabel: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        discovery = {"role": role, "kubeconfig_file": str(paths.kubeconfig)}
        # Metrics about another object, such as a job or a container, keep its name.
        return {
            "job_name": name,
            "honor_labels": True,
            "kubernetes_sd_configs": [discovery],
            "relabel_configs": relabel,
            **more,
        }

    named_port = {"action": "keep", "source_labels": [f"{meta}_pod_container_port_name"], "regex": "metrics"}
    named_service = {"action": "keep", "source_labels": [f"{meta}_service_name"], "regex": ".+-metrics"}
    # Of the pods behind it other ports are found too.
    its_port = {"action": "keep", "source_labels": [f"{meta}_endpointslice_port_name"], "regex": ".+"}
    labels = {"action": "labelmap", "regex": f"{meta}_pod_label_(.+)"}
    pki = paths.pki
    identity = {"ca_file": f"{pki / 'ca.crt'}", "cert_file": f"{pki / 'admin.crt'}", "key_file": f"{pki / 'admin.key'}"}
    return {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
        "rule_files": [str(each.resolve()) for each in rules],
        "scrape_configs": [
            scrape("pods", "pod", [named_port, *of_pods, labels]),
            scrape("services", "endpointslice", [named_service, its_port, *of_pods]),
            scrape("kubelets", "node", [], scheme="https", metrics_path="/metrics/cadvisor", tls_config=identity),
        ],
    }


def adapter_rules() -> dict[str, Any]:
    """The adapter's: each series of a pod's own is a metric of that pod."""
    own = {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}
    return {
        "rules": [
            {
                "seriesQuery": '{namespace!="",pod!=""}',
                "resources": {"overrides": own},
                "name": {"matches": "^(.*)$"},
                "metricsQuery": "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)",
            }
        ]
    }


def service(name: str) -> dict[str, Any]:
    """A Service with manual endpoints."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": [{"name": "https", "port": 443}]},
    }


def endpoints(name: str, port: int) -> dict[str, Any]:
    """A process of the host."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [GATEWAY], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port}],
    }


def api_service(group: str, version: str, name: str, authority: str) -> dict[str, Any]:
    """By it the API server has that Service answer for the group."""
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{version}.{group}"},
        "spec": {
            "group": group,
            "version": version,
            "service": {"namespace": NAMESPACE, "name": name},
            "caBundle": authority,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    }


def _answers(api: Api, group: str, version: str) -> bool:
    try:
        return bool(api.get(f"/apis/{group}/{version}"))
    except ApiUnavailableError:
        return False


def _metrics_server(paths: Paths) -> list[str]:
    return [
        *_serving(paths, METRICS_SERVER_PORT),
        f"--kubeconfig={paths.kubeconfig}",
        f"--kubelet-certificate-authority={paths.pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--metric-resolution={LISTED_SECONDS}s",
        "--kubelet-request-timeout=5s",
    ]


def _prometheus(paths: Paths, rules: Sequence[Path]) -> list[str]:
    configuration = paths.state / "prometheus.json"
    configuration.write_text(json.dumps(scrapes(paths, rules), indent=1))
    return [
        f"--config.file={configuration}",
        f"--storage.tsdb.path={paths.state / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
    ]


def _adapter(paths: Paths) -> list[str]:
    configuration = paths.state / "prometheus-adapter.json"
    configuration.write_text(json.dumps(adapter_rules(), indent=1))
    return [
        *_serving(paths, ADAPTER_PORT),
        f"--config={configuration}",
        f"--prometheus-url={PROMETHEUS_URL}",
        f"--metrics-relist-interval={LISTED_SECONDS}s",
        f"--lister-kubeconfig={paths.kubeconfig}",
    ]


def _serving(paths: Paths, port: int) -> list[str]:
    return [
        f"--bind-address={GATEWAY}",
        f"--secure-port={port}",
        f"--tls-cert-file={paths.pki / 'metrics.crt'}",
        f"--tls-private-key-file={paths.pki / 'metrics.key'}",
        f"--authentication-kubeconfig={paths.kubeconfig}",
        f"--authorization-kubeconfig={paths.kubeconfig}",
    ]
