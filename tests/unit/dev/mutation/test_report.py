from pathlib import Path

import pytest

from dev.mutation.mutants import Module, mutants
from dev.mutation.report import Accepted, AcceptedError, Report, check_accepted, read_accepted
from dev.mutation.run import Result, Stage

MODULE = Module("pkg", "pkg.fit", "pkg/fit.py", "def fits(free, size):\n    x = free >= size\n")
BOUNDARY, OPPOSITE = mutants(MODULE)
ENTRY = Accepted("fits", "x = free >= size", "x = free > size", "x is not used")


def test_the_share_leaves_accepted_survivors_out() -> None:
    results = [Result(BOUNDARY), Result(OPPOSITE, killed_in=Stage.OWN)]
    assert Report(results, []).share() == 0.5
    assert Report(results, [ENTRY]).share() == 1.0


def test_the_report_has_survivors_and_a_table() -> None:
    text = Report([Result(BOUNDARY), Result(OPPOSITE, killed_in=Stage.OTHER)], []).text()
    assert "survived: pkg/fit.py:2 fits: comparison" in text
    assert "+    x = free > size" in text
    assert "| pkg | 2 | 0 | 1 | 0 | 0 | 1 | 50.0% |" in text


@pytest.mark.parametrize(
    "entry",
    [
        'function = "f"\nbefore = "a"\nafter = "b"\nreason = " "',
        'function = "f"\nbefore = "a"\nafter = "b"',
    ],
)
def test_an_accepted_survivor_needs_a_reason(tmp_path: Path, entry: str) -> None:
    (tmp_path / "accepted.toml").write_text(f"[[accepted]]\n{entry}\n")
    with pytest.raises(AcceptedError):
        read_accepted(tmp_path / "accepted.toml")


def test_an_accepted_survivor_must_exist() -> None:
    check_accepted([ENTRY], [BOUNDARY, OPPOSITE])
    with pytest.raises(AcceptedError, match="remove it"):
        check_accepted([Accepted("fits", "x = gone()", "x = None", "none")], [BOUNDARY, OPPOSITE])
