"""The graders of manifests as functions from a rendered chart to complaints."""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from dev.localcluster.tools import ensure
from tests.unit.helm.chart import KUBERNETES, Manifest

HERE: Final = Path(__file__).parent
POLICIES: Final = HERE / "policies"
REQUIREMENTS: Final = HERE / "graders.txt"
"""Graders of the package index, with hashed dependencies in their own environment."""
OPTIONAL_CHECKS: Final = ("container-seccomp-profile", "container-ports-check")
"""Optional checks of kube-score. The others require requests to equal limits."""


def written(manifests: Sequence[Manifest], folder: Path) -> Path:
    """Write these manifests into a file."""
    path = folder / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(manifests))
    return path


def kube_score(manifests: Path) -> list[str]:
    """Return the complaints of kube-score, including warnings."""
    options = ("--kubernetes-version", f"v{KUBERNETES.rpartition('.')[0]}", "--output-format", "ci")
    optional = ("--enable-optional-test", ",".join(OPTIONAL_CHECKS), "--disable-ignore-checks-annotations")
    output = _run(ensure("kube-score")["kube-score"], "score", *options, *optional, manifests)
    lines = output.splitlines()
    assert any(line.startswith("[OK]") for line in lines), output
    return sorted({line for line in lines if not line.startswith(("[OK]", "[SKIPPED]"))})


def conftest(manifests: Path) -> list[str]:
    """Return what the policies in this folder deny."""
    found = json.loads(
        _run(ensure("conftest")["conftest"], "test", "--policy", POLICIES, "--output", "json", manifests)
    )
    assert sum(each["successes"] for each in found) or any("failures" in each for each in found)
    return sorted({failure["msg"] for each in found for failure in each.get("failures", [])})


def checkov(framework: str, *files: Path) -> list[str]:
    """Return the complaints of checkov about these files."""
    paths = [word for file in files for word in ("--file", file)]
    output = _run(*_python(), "checkov", "--framework", framework, "--skip-download", "--output", "json", *paths)
    results: Any = json.loads(output)
    results = results if isinstance(results, list) else [results]
    assert all(result["summary"]["passed"] and not result["summary"]["parsing_errors"] for result in results), output
    assert not any(result["summary"]["skipped"] for result in results), "something is excluded"
    failed = [check for result in results for check in result["results"]["failed_checks"]]
    return sorted({f"{check['check_id']} {check['check_name']}: {check['resource']}" for check in failed})


def hadolint(dockerfile: Path) -> list[str]:
    """Return the complaints of hadolint."""
    found = json.loads(_run(*_python(), "hadolint", "--format", "json", dockerfile))
    return sorted({f"{each['code']} line {each['line']}: {each['message']}" for each in found})


def with_its_base(dockerfile: Path, folder: Path) -> Path:
    """Return the Dockerfile with its base argument filled in: graders do not read arguments."""
    text = dockerfile.read_text()
    (base,) = [line.partition("=")[2] for line in text.splitlines() if line.startswith("ARG BASE_IMAGE=")]
    path = folder / "Dockerfile"
    path.write_text(text.replace("${BASE_IMAGE}", base))
    return path


def _python() -> tuple[str, ...]:
    uv = os.environ.get("UV") or shutil.which("uv")
    assert uv, "uv is not on the PATH: run this through `make`"
    return (uv, "run", "--quiet", "--no-project", "--with-requirements", str(REQUIREMENTS), "--")


def _run(*words: str | Path) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr  # 1: it has complaints
    assert done.stdout, done.stderr
    return done.stdout
