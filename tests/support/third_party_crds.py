"""CRDs of the Prometheus operator and of cert-manager, for optional objects of the chart, from their Go modules."""

from pathlib import Path
from typing import Any, Final

import yaml

from dev.localcluster import tools
from dev.localcluster.paths import from_environment

MONITORING: Final = "github.com/prometheus-operator/prometheus-operator"
CERTIFICATES: Final = "github.com/cert-manager/cert-manager"
KINDS: Final = ("podmonitors", "prometheusrules", "servicemonitors")
MODULE: Final = tools.Module(
    "crds",
    {},
    "10 s",
    root=Path(__file__).parent,
    files=(
        *((MONITORING, f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml") for kind in KINDS),
        (CERTIFICATES, "deploy/crds/cert-manager.io_certificates.yaml"),
    ),
)


def crds() -> list[dict[str, Any]]:
    """Return all four CRDs."""
    folder = tools.ensure_module(MODULE, from_environment())
    return [yaml.load(path.read_text(), yaml.CSafeLoader) for path in sorted(folder.glob("*.yaml"))]
