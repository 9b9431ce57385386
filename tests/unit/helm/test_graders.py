"""Graders of the ecosystem have no complaints about chart and images, with all of their checks."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.helm import graders
from tests.unit.helm.chart import CHART, ROOT, Chart, Manifest, Release

HARDENED = yaml.safe_load((CHART / "ci" / "hardened-values.yaml").read_text())
DOCKERFILES = [ROOT / name for name in ("Dockerfile", "trainer-image/Dockerfile", "examples/frameworks/Dockerfile")]


@pytest.fixture(scope="module")
def hardened(chart: Chart) -> Release:
    return chart.render(HARDENED)


@pytest.fixture
def everything(hardened: Release, tmp_path: Path) -> Path:
    return graders.written(hardened.manifests, tmp_path)


def test_hardened_values_render_every_template(hardened: Release) -> None:
    kinds = {manifest["kind"] for manifest in hardened.manifests}
    assert kinds >= {"NetworkPolicy", "PrometheusRule", "ConfigMap", "ValidatingAdmissionPolicy", "PodMonitor", "Pod"}


def test_kube_score(everything: Path) -> None:
    assert graders.kube_score(everything) == []


def test_checkov(everything: Path) -> None:
    assert graders.checkov("kubernetes", everything) == []


def test_conftest(everything: Path) -> None:
    assert graders.conftest(everything) == []


def test_documented_findings_match_the_graders(release: Release, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "chart.md").read_text()
    manifests = graders.written(release.manifests, tmp_path)
    findings = graders.kube_score(manifests) + graders.conftest(manifests) + graders.checkov("kubernetes", manifests)
    reasons = {
        "`image.digest`": ("digest",),
        "`image.pullPolicy`": ("ImagePullPolicy", "Image Pull Policy"),
        "`resources.limits.cpu`": ("CPU limit", "limit of cpu"),
        "`networkPolicy.enabled`": ("NetworkPolicy",),
    }
    for value, words in reasons.items():
        assert f"- {value}" in page
        assert [line for line in findings if any(word in line for word in words)], value
    rest = [line for line in findings if not any(word in line for words in reasons.values() for word in words)]
    assert rest == []


Pod = dict[str, Any]
SPOILED: dict[str, Callable[[Pod], object]] = {
    "hostPID is the node's": lambda pod: pod.update(hostPID=True),
    "volume root is a hostPath": lambda pod: pod["volumes"].append({"name": "root", "hostPath": {"path": "/"}}),
    "every container has the account's token": lambda pod: pod.pop("automountServiceAccountToken"),
    "may be root": lambda pod: pod["securityContext"].pop("runAsNonRoot"),
    "is root": lambda pod: pod["containers"][0]["securityContext"].update(runAsUser=0),
    "has no seccomp profile": lambda pod: pod["securityContext"].pop("seccompProfile"),
    "may gain privileges": lambda pod: pod["containers"][0]["securityContext"].pop("allowPrivilegeEscalation"),
    "is privileged": lambda pod: pod["containers"][0]["securityContext"].update(privileged=True),
    "can write to its image": lambda pod: pod["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"),
    "keeps capabilities": lambda pod: pod["containers"][0]["securityContext"].pop("capabilities"),
    "adds capability SYS_PTRACE": lambda pod: pod["containers"][0]["securityContext"]["capabilities"].update(
        add=["SYS_PTRACE"]
    ),
    "takes a port of the node": lambda pod: pod["containers"][0]["ports"].append({"containerPort": 80, "hostPort": 80}),
    "has no limit of memory": lambda pod: pod["containers"][0]["resources"]["limits"].pop("memory"),
    "has no digest": lambda pod: pod["containers"][0].update(image="example.org/operator:1"),
    "is a Secret": lambda pod: pod["containers"][0]["env"].append(
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}}
    ),
}


def test_each_pod_policy_detects_its_violation(hardened: Release, tmp_path: Path) -> None:
    spoiled = []
    for number, spoil in enumerate(SPOILED.values()):
        deployment: Any = copy.deepcopy(hardened.operator())
        deployment["metadata"]["name"] = f"spoiled-{number}-"
        spoil(deployment["spec"]["template"]["spec"])
        spoiled.append(deployment)
    findings = graders.conftest(graders.written(spoiled, tmp_path))
    for number, words in enumerate(SPOILED):
        assert [line for line in findings if f"spoiled-{number}-" in line and words in line], words


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"apiGroups": ["*"], "resources": ["pods"], "verbs": ["get"]}, "a star"),
        ({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}, "rights on pods/exec"),
        ({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["x"], "verbs": ["bind"]}, "the verb bind"),
        ({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}, "rights on secrets"),
        (
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a", "b"], "verbs": ["get"]},
            "rights on secrets",
        ),
        (
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["delete"]},
            "rights on secrets",
        ),
    ],
)
def test_each_permission_policy_detects_its_violation(rule: Manifest, words: str, tmp_path: Path) -> None:
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "x"}, "rules": [rule]}
    assert [line for line in graders.conftest(graders.written([role], tmp_path)) if words in line]


def test_secrets_hold_only_certificates(tmp_path: Path) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}, "stringData": {"password": "secret"}}
    assert graders.conftest(graders.written([secret], tmp_path)) == ["Secret x: of type Opaque"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_dockerfiles(dockerfile: Path, tmp_path: Path) -> None:
    resolved = graders.with_its_base(dockerfile, tmp_path)
    assert graders.hadolint(resolved) == []
    assert graders.checkov("dockerfile", resolved) == []


def test_ignored_hadolint_rule_has_a_reason() -> None:
    """It wants pinned versions of Debian packages, but the archive keeps only the newest of each."""
    set_aside = [line for path in DOCKERFILES for line in path.read_text().splitlines() if "hadolint ignore" in line]
    assert {*set_aside} == {"# hadolint ignore=DL3008"}


def test_workflows() -> None:
    assert graders.checkov("github_actions", *(ROOT / ".github/workflows").glob("*.yml")) == []
