"""The content hash: the same for the same files, another for any other."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from dev.localcluster._images.digest import content_hash


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "Dockerfile").write_text("FROM base\n")
    (tmp_path / "source" / "main.py").write_text("print(1)\n")
    (tmp_path / "source" / "deep" / "more.py").write_text("print(2)\n")
    return tmp_path


INPUTS = ("Dockerfile", "source")


def test_hash_is_short_and_depends_on_contents_only(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    first = content_hash(tree, INPUTS)
    copy = tmp_path_factory.mktemp("copy")
    for path in sorted(tree.rglob("*")):
        target = copy / path.relative_to(tree)
        target.mkdir() if path.is_dir() else target.write_bytes(path.read_bytes())
    assert len(first) == 12
    assert int(first, 16) >= 0
    assert content_hash(copy, tuple(reversed(INPUTS))) == first


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda root: (root / "Dockerfile").write_text("FROM other\n"), id="contents"),
        pytest.param(lambda root: (root / "source" / "new.py").touch(), id="an added empty file"),
        pytest.param(lambda root: (root / "source" / "main.py").rename(root / "source" / "start.py"), id="a name"),
        pytest.param(lambda root: (root / "source" / "main.py").chmod(0o755), id="the executable bit"),
        pytest.param(lambda root: (root / "source" / "deep" / "more.py").unlink(), id="a removed file"),
    ],
)
def test_any_change_changes_the_hash(tree: Path, change: Callable[[Path], object]) -> None:
    before = content_hash(tree, INPUTS)
    change(tree)
    assert content_hash(tree, INPUTS) != before


def test_compiled_files_and_other_folders_do_not_count(tree: Path) -> None:
    before = content_hash(tree, INPUTS)
    (tree / "source" / "__pycache__").mkdir()
    (tree / "source" / "__pycache__" / "main.pyc").write_bytes(b"\0")
    (tree / "elsewhere").touch()
    assert content_hash(tree, INPUTS) == before


def test_missing_input_raises_an_error(tree: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        content_hash(tree, ("absent",))


@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3), max_size=4))
def test_no_two_recipes_share_a_hash(one: list[str], other: list[str]) -> None:
    same = content_hash(Path(), (), one) == content_hash(Path(), (), other)
    assert same == (one == other)
