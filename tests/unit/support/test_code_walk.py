"""The walk through the code: which calls it follows, and what counts as a return."""

from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.code_walk import CodeWalk, Sources

START = """
    from farm import gate
    from farm.barn import feed, store

    def start(job: JobView) -> None:
        {body}
"""
BARN = """
    from farm.gate import opened

    def feed(job: JobView) -> None:
        opened(job)

    def store(job: JobView) -> None: ...

    def weigh(kilograms: int) -> None: ...
"""
GATE = """
    def opened(job: JobView) -> None: ...

    def closed(job: JobView) -> None: ...

    CHECKS: tuple[object, ...] = (opened, closed)
"""


@pytest.mark.parametrize(
    ("body", "returns", "files"),
    [
        pytest.param("pass", [], ["start"], id="no call"),
        pytest.param("store(job)", ["start"], ["start", "barn"], id="back to the caller"),
        pytest.param("store(job); store(job)", ["start"], ["start", "barn"], id="once"),
        pytest.param("store(job.status)", ["start"], ["start", "barn"], id="a part of it"),
        pytest.param("weigh(job.kilograms)", [], ["start"], id="a number is no part"),
        pytest.param("feed(job)", ["feed", "start"], ["start", "barn", "gate"], id="calls of the called"),
        pytest.param(
            "gate.closed(feed(job))", ["feed", "start", "closed", "start"], ["start", "barn", "gate"], id="args"
        ),
        pytest.param("store = feed = 1; print(store)", [], ["start"], id="a variable of that name"),
    ],
)
def test_returns_to_a_left_file(tmp_path: Path, body: str, returns: list[str], files: list[str]) -> None:
    walk = walked(tmp_path, body)
    assert [function for _, function in walk.returns] == returns
    assert [module.removeprefix("farm.") for module in walk.files] == files


def test_tables_of_functions_are_followed(tmp_path: Path) -> None:
    assert "farm.gate" in walked(tmp_path, "list(map(run, gate.CHECKS))").files


def test_skipped_functions_are_not_followed(tmp_path: Path) -> None:
    assert walked(tmp_path, "feed(job)", skipped=frozenset({"opened"})).files == ["farm.start", "farm.barn"]


def walked(folder: Path, body: str, skipped: frozenset[str] = frozenset()) -> CodeWalk:
    """The walk from `start` with this body."""
    for name, text in {"start": START.format(body=body), "barn": BARN, "gate": GATE}.items():
        path = folder / "farm" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(dedent(text))
    walk = CodeWalk(Sources.of(folder, "farm"), skipped)
    walk.follow(("farm.start", "start"))
    return walk
