"""The rules of the repository that no linter knows."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [ROOT / name for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()]
PROGRAMS = [path for path in FILES if path.suffix in {".py", ".sh", ".go"} and path.exists()]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_holds_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in {"utils", "util", "helpers", "common"}


def test_the_folder_operator_does_not_hide_the_standard_library() -> None:
    assert not (ROOT / "operator/__init__.py").exists()


def test_no_image_is_called_latest() -> None:
    texts = [p for p in FILES if p.suffix in {".yaml", ".yml", ".tpl"} or p.name == "Dockerfile"]
    assert [p for p in texts if p.exists() and ":latest" in p.read_text()] == []
