"""The suites of helm-unittest pass, cover each template and value, and detect a broken template."""

import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.localcluster.tools import ensure
from tests.unit.helm.chart import CHART, Chart, leaves

SUITES = sorted((CHART / "tests").glob("*_test.yaml"))
TEMPLATES = sorted(path.name for path in (CHART / "templates").iterdir() if not path.name.startswith("_"))
# For each template: a text and the replacement that breaks it.
BROKEN = [
    ("NOTES.txt", "{{- else if .Values.crds.keep }}", "{{- else }}"),
    ("admission-operator.yaml", "request.userInfo.username != {{ $account }}", "request.userInfo.username == ''"),
    ("admission.yaml", 'printf "%s-author" $name) "watched" true', 'printf "%s-author" $name) "watched" false'),
    ("coordinator.yaml", "{{- else if $own }}", "{{- else }}"),
    ("crd.yaml", '"helm.sh/resource-policy" "keep"', '"helm.sh/resource-policy" "delete"'),
    ("dashboards.yaml", "default $.Release.Namespace $values.namespace", "$.Release.Namespace"),
    ("deployment.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"),
    ("helm-test.yaml", "trainyard.helmTestLabels", "trainyard.selectorLabels"),
    ("metrics-service.yaml", "targetPort: http", "targetPort: 8080"),
    ("networkpolicy.yaml", "          namespaceSelector: {}", "        - namespaceSelector: {}"),
    ("poddisruptionbudget.yaml", "(gt (int64 .Values.replicas) 1)", "(gt (int64 .Values.replicas) 0)"),
    ("podmonitor.yaml", "matchNames:", "names:"),
    ("prometheusrule.yaml", '(trimSuffix "/" $values.runbookUrl)', "$values.runbookUrl"),
    ("rbac.yaml", "resourceNames: [{{ $name | quote }}]", 'resourceNames: ["*"]'),
    ("serviceaccount.yaml", "automountServiceAccountToken: false", "automountServiceAccountToken: true"),
    ("servicemonitor.yaml", "honorLabels: true", "honorLabels: false"),
    ("user-roles.yaml", "(not .Values.watchNamespaces)", "true"),
]


def run(chart: Path, suite: str = "*") -> tuple[bool, str]:
    """Return whether all suites pass, and the output."""
    done = subprocess.run(
        [ensure("helm-unittest")["helm-unittest"], "--strict", "--file", f"tests/{suite}_test.yaml", chart],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, done.stdout + done.stderr


def test_suites_pass() -> None:
    passed, output = run(CHART)
    assert passed, output
    assert re.search(rf"^Test Suites: {len(SUITES)} passed, {len(SUITES)} total$", output, re.MULTILINE), output


@pytest.mark.parametrize("template", TEMPLATES)
def test_each_template_has_a_suite(template: str) -> None:
    suite = yaml.safe_load((CHART / "tests" / f"{Path(template).stem}_test.yaml").read_text())
    assert suite["templates"] == [template]


def test_names_and_labels_are_tested_everywhere() -> None:
    suite = yaml.safe_load((CHART / "tests" / "names_test.yaml").read_text())
    assert suite["templates"] == [name for name in TEMPLATES if name not in {"NOTES.txt", "crd.yaml"}]


def names(given: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the dotted names of the values that a suite sets."""
    for name, value in given.items():
        yield f"{before}{name}"
        if isinstance(value, dict):
            yield from names(value, f"{before}{name}.")


def test_each_value_is_set_in_a_suite() -> None:
    suites = [yaml.safe_load(path.read_text()) for path in SUITES]
    places = [place for suite in suites for place in (suite, *suite["tests"])]
    given = {name for place in places for name in names(place.get("set", {}))}
    assert [name for name, _ in leaves(yaml.safe_load((CHART / "values.yaml").read_text())) if name not in given] == []


@pytest.mark.parametrize(("template", "right", "wrong"), BROKEN)
def test_suites_detect_a_broken_template(tmp_path: Path, template: str, right: str, wrong: str) -> None:
    shutil.copytree(CHART, tmp_path / "trainyard")
    broken = tmp_path / "trainyard" / "templates" / template
    text = broken.read_text()
    assert right in text
    broken.write_text(text.replace(right, wrong))
    passed, output = run(tmp_path / "trainyard", Path(template).stem)
    assert not passed
    assert re.search("^Test Suites: 1 failed, 0 passed, 1 total$", output, re.MULTILINE), output


def test_each_template_is_broken_once() -> None:
    assert [template for template, _, _ in BROKEN] == TEMPLATES


def test_suites_are_not_packaged(chart: Chart, tmp_path: Path) -> None:
    subprocess.run([chart.helm, "package", CHART, "--destination", tmp_path], check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as packed:
        held = {Path(name).relative_to(CHART.name).as_posix() for name in packed.getnames()}
    files = {path.relative_to(CHART).as_posix() for path in CHART.rglob("*") if path.is_file()}
    assert files - held == {"README.md.gotmpl", "ci/hardened-values.yaml", *(f"tests/{path.name}" for path in SUITES)}
    assert held <= files
