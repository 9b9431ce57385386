"""The whole command on a tiny project: one rule is tested at its boundary, one is not tested, one hangs when it is changed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\naddopts = ["--import-mode=importlib"]\n',
    "src/tiny/__init__.py": "",
    "src/tiny/rules/__init__.py": "",
    "src/tiny/rules/adult.py": "def adult(age):\n    return age >= 18\n",
    "src/tiny/rules/loose.py": "def senior(age):\n    return age >= 65\n",
    "src/tiny/rules/count.py": "def down(n):\n    while n > 0:\n        n -= 1\n    return n\n",
    "tests/unit/rules/test_adult.py": (
        "from tiny.rules.adult import adult\n\n\n"
        "def test_adult():\n    assert [adult(age) is True for age in (17, 18, 19)] == [False, True, True]\n"
    ),
    "tests/unit/rules/test_loose.py": (
        "from tiny.rules.loose import senior\n\n\ndef test_senior():\n    assert senior(90) and senior(10) is False\n"
    ),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def mutate(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    accepted = project / "accepted.toml"
    command = [
        sys.executable,
        "-m",
        "dev.mutation",
        "--root",
        str(project),
        "--accepted",
        str(accepted),
        "--mutants",
        "100",
    ]
    scope = ["--package", "src/tiny/rules", "--tests", "tests/unit"]
    return subprocess.run([*command, *scope, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_missing_test_is_found(project: Path) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*.py")}
    run = mutate(project)
    assert run.returncode == 1, run.stderr
    survivors = [line for line in run.stdout.splitlines() if line.startswith("survived: ")]
    assert not [line for line in survivors if "adult.py" in line]
    assert "survived: src/tiny/rules/loose.py:2 senior: comparison" in survivors
    assert "+    return age > 65" in run.stdout
    assert any("count.py:2" in line and "no unit test runs this line" in line for line in survivors)
    assert {path: path.read_bytes() for path in project.rglob("*.py")} == before


def test_reasons_make_the_run_pass(project: Path) -> None:
    (project / "src/tiny/rules/count.py").unlink()
    entries = [
        ("return age > 65", "at the boundary both are right"),
        ("return age >= 66", "at the boundary both are right"),
        ("return age >= 64", "at the boundary both are right"),
    ]
    (project / "accepted.toml").write_text(
        "".join(
            f'[[accepted]]\nfunction = "senior"\nbefore = "return age >= 65"\nafter = "{after}"\nreason = "{reason}"\n'
            for after, reason in entries
        )
    )
    run = mutate(project, "--least", "100")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "| src/tiny/rules | 10 | 7 | 0 | 0 | 3 | 0 | 100.0% |" in run.stdout


def test_tests_must_pass_without_a_mutant(project: Path) -> None:
    (project / "tests/unit/rules/test_adult.py").write_text("def test_adult():\n    assert False\n")
    run = mutate(project)
    assert run.returncode == 2
    assert "the tests fail without a mutant" in run.stderr


def test_an_endless_loop_is_killed(project: Path) -> None:
    (project / "tests/unit/rules/test_count.py").write_text(
        "import os, signal\nfrom tiny.rules.count import down\n\n\n"
        # Stands in for the limit of processor time, so that the test need not wait for it.
        "def test_down():\n    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
        "    signal.setitimer(signal.ITIMER_REAL, 5)\n    assert down(2) == 0\n    signal.setitimer(signal.ITIMER_REAL, 0)\n"
    )
    run = mutate(project)
    assert "count.py:3 arithmetic: killed by stopped at its limit (signal 9)" in run.stdout


def test_only_reaching_test_files_kill_a_mutant(project: Path) -> None:
    """Lines that run as pytest starts belong to no test file: they must not make other folders run."""
    (project / "src/tiny/rules/loose.py").write_text("SENIOR = 65\n\n\ndef senior(age):\n    return age >= SENIOR\n")
    (project / "tests/unit/conftest.py").write_text("import tiny.rules.loose\n")
    (project / "tests/other").mkdir()
    (project / "tests/other/test_unrelated.py").write_text("def test_unrelated():\n    assert False\n")
    run = mutate(project)
    assert "test_unrelated" not in run.stdout
    assert "survived: src/tiny/rules/loose.py:1" in run.stdout
