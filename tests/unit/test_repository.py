"""The rules of the repository that no linter knows."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.code_walk import CodeWalk, Sources

ROOT = Path(__file__).parents[2]
FILES = [ROOT / name for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()]
FOLDERS = {
    folder.relative_to(ROOT) for path in FILES if path.exists() for folder in path.parents if ROOT in folder.parents
}
OPERATOR = {
    folder
    for folder in FOLDERS
    if folder.is_relative_to("operator/trainyard") and (ROOT / folder / "__init__.py").exists()
}
PROGRAMS = [path for path in FILES if path.suffix in {".py", ".sh", ".go"} and path.exists()]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_holds_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    assert path.stem not in {"utils", "util", "helpers", "common"}


def test_operator_folder_does_not_hide_standard_library() -> None:
    assert not (ROOT / "operator/__init__.py").exists()


def test_no_image_is_called_latest() -> None:
    texts = [p for p in FILES if p.suffix in {".yaml", ".yml", ".tpl"} or p.name == "Dockerfile"]
    assert [p for p in texts if p.exists() and ":latest" in p.read_text()] == []


def in_map(page: str) -> set[Path]:
    """The folders in the table of a page, with those that hold them."""
    rows = re.findall(r"^\| \[?`([a-z_/-]+?)/?`", (ROOT / page).read_text(), re.MULTILINE)
    named = {Path(row) for row in rows}
    assert named <= FOLDERS
    return named | {parent for path in named for parent in path.parents}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_map_names_every_folder(page: str) -> None:
    top = {folder for folder in FOLDERS if len(folder.parts) == 1 and not folder.name.startswith(".")}
    dev = {folder for folder in FOLDERS if len(folder.parts) == 2 and folder.parts[0] == "dev"}
    assert top | dev <= in_map(page)


def test_contributor_map_names_every_operator_package() -> None:
    assert in_map("CONTRIBUTING.md") >= OPERATOR


PAGES = [path for path in FILES if path.suffix == ".md" and path.exists()]


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_have_a_target(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_library_was_tested_with_the_torch_for_gpus() -> None:
    """After the run that docs/release.md asks for, its release goes there, too."""
    (pinned,) = re.findall(r"^torch==(\S+)", (ROOT / "trainer-image/requirements-cuda.txt").read_text(), re.MULTILINE)
    assert f"It passed last with torch {pinned}." in (ROOT / "docs/release.md").read_text()


def test_a_snapshot_is_followed_with_few_returns() -> None:
    """docs/design/0027-gather-then-decide.md has the rule, and the figures of earlier states."""
    walk = CodeWalk(Sources.of(ROOT / "operator", "trainyard.domain"), skipped={"apply_failure_policy"})
    walk.follow(("trainyard.domain.plan", "plan"))
    assert len(walk.files) > 20
    assert len(walk.returns) <= 65, walk.returns
