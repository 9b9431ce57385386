"""Our row of the comparison in docs/chart.md is true."""

import yaml

from tests.unit.helm.chart import CHART, Chart
from trainyard.api.spec import TrainingJobSpec

PAGE = CHART.parents[1] / "docs" / "chart.md"
EVERYTHING = {
    "networkPolicy": {"enabled": True, "jobs": {"from": [{"namespaceSelector": {}}]}},
    "admission": {"enabled": True, "podSecurity": "restricted"},
    "metrics": {
        name: {"enabled": True}
        for name in ("service", "serviceMonitor", "podMonitor", "prometheusRule", "dashboards")
    },
}  # fmt: skip


def rows() -> dict[str, dict[str, str]]:
    lines = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    head, _, *rest = [[cell.strip() for cell in line] for line in lines]
    return {cells[0]: dict(zip(head, cells, strict=True)) for cells in rest}


def test_comparison_row_matches_the_chart(chart: Chart) -> None:
    release = chart.render(EVERYTHING)
    made = [manifest["kind"] for manifest in release.manifests]
    (rules,) = release.all("PrometheusRule")
    kept = release.one("CustomResourceDefinition", "trainingjobs.trainyard.dev")["metadata"]["annotations"]
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert rows()["**trainyard**"] == {
        "Chart": "**trainyard**",
        "Schema of values": "yes" if (CHART / "values.schema.json").exists() else "-",
        "CRDs": "templates, kept" if kept["helm.sh/resource-policy"] == "keep" else "templates",
        "`helm test`": "trains a job of two workers" if "trainyard.helm_test" in str(release.all("Pod")) else "-",
        "Files of tests": str(len([*(CHART / "tests").glob("*_test.yaml")])),
        "Disruption budget": "yes" if "PodDisruptionBudget" in made else "-",
        "Monitors": ", ".join(
            kind.removesuffix("Monitor") for kind in ("ServiceMonitor", "PodMonitor") if kind in made
        ),
        "Alerts": str(sum(len(group["rules"]) for group in rules["spec"]["groups"])),
        "Dashboards": str(made.count("ConfigMap")),
        "NetworkPolicy": "yes" if "NetworkPolicy" in made else "-",
        "Artifact Hub": "yes" if any(name.startswith("artifacthub.io/") for name in described["annotations"]) else "-",
        "Admission policies": str(made.count("ValidatingAdmissionPolicy")),
        "Notes": "yes" if (CHART / "templates" / "NOTES.txt").exists() else "-",
    }


def test_artifact_hub_annotations_are_true() -> None:
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    (crd,) = yaml.safe_load(described["artifacthub.io/crds"])
    installed = yaml.safe_load((CHART / "files" / "trainyard.dev_trainingjobs.yaml").read_text())
    assert (crd["name"], crd["kind"]) == (installed["metadata"]["name"], installed["spec"]["names"]["kind"])
    assert crd["version"] in {version["name"] for version in installed["spec"]["versions"]}
    (example,) = yaml.safe_load(described["artifacthub.io/crdsExamples"])
    assert TrainingJobSpec.model_validate(example["spec"]).replicas == 4
