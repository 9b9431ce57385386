"""Install, upgrade, roll back and uninstall with Helm 3 and 4 in a `restricted` namespace while a job runs."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dev.demo import install
from dev.demo.commands import Cluster
from dev.localcluster.tools import ensure
from tests.cluster.kube import Kube, job

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


@pytest.fixture(params=["helm", "helm4"])
def by(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Uninstall the operator, and use this Helm. At the end the operator is installed again."""
    made = replace(cluster, helm=ensure(request.param)[request.param])
    install.uninstall(cluster)
    cluster.kube("label", "namespace", install.NAMESPACE, RESTRICTED)
    try:
        yield made
        install.uninstall(made)
    finally:
        cluster.kube("label", "namespace", install.NAMESPACE, RESTRICTED.replace("=restricted", "-"))
        install.install(cluster)


def previous(folder: Path) -> Path:
    """Return a chart of an earlier version with one different value."""
    chart = folder / "trainyard"
    shutil.copytree(install.CHART, chart)
    about, values = chart / "Chart.yaml", chart / "values.yaml"
    about.write_text(about.read_text().replace("\nversion: 0.1.0\n", "\nversion: 0.0.9\n"))
    values.write_text(values.read_text().replace("  concurrentReconciles: 32\n", "  concurrentReconciles: 8\n"))
    assert "0.0.9" in about.read_text()
    assert "concurrentReconciles: 8" in values.read_text()
    return chart


def test_release_changes_do_not_disturb_a_running_job(by: Cluster, kube: Kube, tmp_path: Path) -> None:
    home = kube.other(install.NAMESPACE)

    def concurrent_reconciles() -> str:
        """Return the setting of the operator: 8 in the earlier version, 32 in this one."""
        (container,) = home.get("deployment", "trainyard")["spec"]["template"]["spec"]["containers"]
        return str(
            next(each["value"] for each in container["env"] if each["name"] == "TRAINYARD_CONCURRENT_RECONCILES")
        )

    def pods() -> list[str]:
        return sorted(pod["metadata"]["uid"] for pod in kube.pods("job"))

    install.install(by, chart=previous(tmp_path))
    assert concurrent_reconciles() == "8"
    kube.apply(job(replicas=2))
    kube.wait_phase("job", "Running")
    before = pods()
    install.install(by)
    assert (concurrent_reconciles(), pods()) == ("32", before)
    by.helm_command("rollback", install.RELEASE, "1", "--namespace", home.namespace, "--wait", "--timeout", "120s")
    assert (concurrent_reconciles(), pods()) == ("8", before)
    assert "the job completed: the installation works" in by.helm_command(
        "test", install.RELEASE, "--namespace", home.namespace, "--logs"
    )
    home.run("delete", "pod", "trainyard-helm-test")
    install.uninstall(by)
    assert (kube.phase("job"), pods()) == ("Running", before), "the CRD, its objects and their pods stay"
    install.install(by)
    kube.delete_pod("job-worker-1-1")
    kube.until(lambda: kube.status("job").get("restarts", {}).get("disruptions") == 1, 60, "the operator to manage it")
    kube.wait_phase("job", "Running")
