"""The workflow of releases: the job that builds can sign nothing, and the job that signs builds nothing of ours."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[4]
TEXT = (ROOT / ".github/workflows/release.yml").read_text()
JOBS: dict[str, Any] = yaml.safe_load(TEXT)["jobs"]


def scripts(job: str) -> str:
    return "\n".join(step["run"] for step in JOBS[job]["steps"])


def test_build_job_has_no_identity_and_no_secret() -> None:
    assert "id-token" not in JOBS["build"]["permissions"]
    assert "environment" not in JOBS["build"]
    assert "secrets." not in TEXT
    assert "--unsigned" in scripts("build")


@pytest.mark.parametrize("program", ["make ", "uv ", "pip", "python", "sudo"])
def test_signing_job_runs_no_build_tool(program: str) -> None:
    assert program not in scripts("sign")


def test_files_are_checked_before_they_are_signed() -> None:
    text = scripts("sign")
    assert JOBS["sign"]["needs"] == "build"
    assert 0 < text.index("sha256sum --check") < text.index("sign --yes")


def test_scan_precedes_everything_that_is_pushed() -> None:
    """A chart's version is pushed once: a scan behind it would leave an unsigned chart that cannot be replaced."""
    text = scripts("build")
    assert 0 < text.index("audit --frozen") < text.index("docker/config.json") < text.index("make release")
    assert "audit --frozen" not in scripts("sign")


def test_commands_of_the_release_page_name_real_modules() -> None:
    page = (ROOT / "docs/release.md").read_text()
    modules = re.findall(r"from ([\w.]+) import|python -m ([\w.]+)", page)
    assert modules
    assert all(find_spec(one or other) for one, other in modules)
