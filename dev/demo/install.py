"""Install the operator with Helm, as the README describes it."""

from pathlib import Path

from dev.demo.commands import Cluster, DemoError, say
from dev.demo.target import ROOT

RELEASE = "trainyard"
NAMESPACE = "trainyard-system"
CHART = ROOT / "helm/trainyard"
OPERATORS = ("--selector", f"app.kubernetes.io/name=trainyard,app.kubernetes.io/instance={RELEASE}")
"""kubectl arguments that select both operator pods."""


def install(cluster: Cluster, *more: str, chart: Path = CHART) -> None:
    """Install or upgrade the chart, and wait until the operator is ready.

    Args:
        cluster: the cluster to install into.
        more: further arguments for helm.
        chart: the chart, as a folder or an archive.
    """
    repository, _, tag = cluster.images["operator"].rpartition(":")
    say("installing the operator with Helm …")
    try:
        _upgrade(cluster, chart, repository, tag, more)
    except DemoError as error:
        log = cluster.kube("--namespace", NAMESPACE, "logs", *OPERATORS, "--tail=5", "--ignore-errors")
        raise DemoError(f"{error}\nlast log lines of the operator:\n{log}") from error


def _upgrade(cluster: Cluster, chart: Path, repository: str, tag: str, more: tuple[str, ...]) -> None:
    cluster.helm_command(
        *("upgrade", "--install", RELEASE, str(chart), "--namespace", NAMESPACE),
        *("--create-namespace", "--wait", "--timeout", "120s"),
        *("--set", f"image.repository={repository}", "--set", f"image.tag={tag}"),
        *("--set-string", f"podAnnotations.revision={cluster.revision}"),
        *more,
    )


def uninstall(cluster: Cluster) -> None:
    """Uninstall the operator. The CRD and all TrainingJobs stay."""
    cluster.helm_command("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", "120s")
