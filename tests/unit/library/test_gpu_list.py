"""docs/training/gpus.md lists what is marked in the code, and names tests that are there and need a GPU."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIBRARY, TESTS = ROOT / "trainer-image/library/trainyard_torch", ROOT / "tests/library"
ROW = re.compile(r"^\| `(.+\.py)` \| (.+?)(?: \([^)]*\))? \| `(.+\.py)::(\w+)` \|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs/training/gpus.md").read_text())


def test_the_list_is_what_is_marked() -> None:
    marked = {
        (str(path.relative_to(LIBRARY)), words)
        for path in LIBRARY.rglob("*.py")
        for words in re.findall(r"# gpu-only: (.+)", path.read_text())
    }
    assert {(file, what) for file, what, _, _ in ROWS} == marked
    assert len(ROWS) == len(marked) > 10


def test_cuda_code_is_in_a_marked_file() -> None:
    # Text and tables alone.
    without = {"device.py", "mesh.py", "mesh_groups.py", "number_formats.py", "parallel/meta_device.py"}
    found = {
        str(path.relative_to(LIBRARY))
        for path in LIBRARY.rglob("*.py")
        if re.search(r'torch\.cuda\.|"cuda', path.read_text())
    }
    assert found - without <= {file for file, *_ in ROWS}


def test_each_names_a_test_that_needs_a_gpu() -> None:
    for _, _, file, name in ROWS:
        text = (TESTS / file).read_text()
        assert f"def {name}(" in text
        marks = re.search(rf"((?:^@.*\n(?:^[ )].*\n)*)*)^def {name}\(", text, re.MULTILINE)
        assert marks
        assert "pytest.mark.gpu" in marks[1] or re.search(r"^pytestmark = pytest.mark.gpu$", text, re.MULTILINE), name
