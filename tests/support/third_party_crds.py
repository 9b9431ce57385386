"""CRDs of the Prometheus operator, of cert-manager and of gang schedulers, from their Go modules as they are."""

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
GANGS: Final = tools.Module(
    "crds",
    {},
    "10 s",
    root=Path(__file__).parent,
    files=(
        ("volcano.sh/volcano", "config/crd/volcano/bases/scheduling.volcano.sh_podgroups.yaml"),
        ("volcano.sh/volcano", "config/crd/volcano/bases/scheduling.volcano.sh_queues.yaml"),
        ("volcano.sh/volcano", "config/crd/volcano/bases/nodeinfo.volcano.sh_numatopologies.yaml"),
        ("sigs.k8s.io/scheduler-plugins", "config/crd/bases/scheduling.x-k8s.io_podgroups.yaml"),
    ),
)


def crds() -> list[dict[str, Any]]:
    """Return the four CRDs of the Prometheus operator and of cert-manager."""
    return _read(MODULE)


def gang_crds() -> list[dict[str, Any]]:
    """Return the PodGroups of Volcano and of scheduler-plugins, and what else the scheduler of Volcano reads."""
    return _read(GANGS)


def _read(module: tools.Module) -> list[dict[str, Any]]:
    folder = tools.ensure_module(module, from_environment())
    return [yaml.load(path.read_text(), yaml.CSafeLoader) for path in sorted(folder.glob("*.yaml"))]
