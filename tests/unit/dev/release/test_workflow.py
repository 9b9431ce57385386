"""The workflow of releases: the job that builds can sign nothing, and the job that signs builds nothing of ours."""

from pathlib import Path
from typing import Any

import pytest
import yaml

TEXT = (Path(__file__).parents[4] / ".github/workflows/release.yml").read_text()
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
