"""The agent compares nodes before it starts the ranks, where the operator wants that."""

import sys
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import running_agent
from tests.unit.agent.fake_operator import FakeOperator, credentials
from tests.unit.agent.rank_scripts import RANK_PRELUDE, WARM_START_OFF
from trainyard_agent.preflight import preflight_command, read_seconds
from trainyard_agent.ranks import SettingError


@pytest.mark.parametrize(
    ("words", "python"),
    [
        pytest.param(["/opt/bin/python3.11", "train.py"], "/opt/bin/python3.11", id="the job's own Python"),
        pytest.param(["torchrun", "train.py"], "python3", id="a launcher"),
        pytest.param(["sh", "-c", "python train.py"], "python3", id="a shell"),
    ],
)
def test_python_of_the_job_compares(words: list[str], python: str) -> None:
    assert preflight_command(words, {}) == []
    assert preflight_command(words, {"TRAINYARD_PREFLIGHT": ""}) == []
    made = preflight_command(words, {"TRAINYARD_PREFLIGHT": "full"})
    assert made == [python, sys.argv[0], "--preflight", "full"]


def test_unknown_extent_is_refused() -> None:
    with pytest.raises(SettingError, match="TRAINYARD_PREFLIGHT must be quick or full, got 'fast'"):
        preflight_command(["python"], {"TRAINYARD_PREFLIGHT": "fast"})


@pytest.mark.parametrize(("text", "seconds"), [("1.5", 1.5), ("-3", 0.0), ("soon", None), (None, None)])
def test_seconds_are_read_from_the_file(tmp_path: Path, text: str | None, seconds: float | None) -> None:
    if text is not None:
        (tmp_path / "seconds").write_text(text)
    assert read_seconds(tmp_path / "seconds") == seconds


def test_ranks_run_where_no_torch_is_installed(program: Path, folder: Path) -> None:
    script = f'{RANK_PRELUDE}\nrecord(f"ran{{R}}", "yes")'
    with running_agent(program, folder, script, TRAINYARD_PREFLIGHT="quick", **WARM_START_OFF) as run:
        code, errors = run.wait()
    assert code == 0
    assert errors.count("nodes were not compared: this Python has no torch") == 2
    assert (folder / "ran2").exists()
    assert (folder / "ran3").exists()


def fake_comparison(folder: Path, text: str) -> None:
    """Have the import of torch in a rank that compares nodes run this text."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text(f"import os, sys\nif '--preflight' in sys.orig_argv:\n    {text}\n")


def test_slow_worker_starts_no_rank(program: Path, folder: Path, operator: FakeOperator) -> None:
    fake_comparison(
        folder, "sys.stderr.write('SlowNodeError: a matrix product of worker 1 takes 9 ms\\n'); os._exit(94)"
    )
    script = f'{RANK_PRELUDE}\nrecord(f"ran{{R}}", "yes")'
    variables = {"TRAINYARD_PREFLIGHT": "quick", "PYTHONPATH": str(folder), **WARM_START_OFF}
    with running_agent(program, folder, script, **credentials(folder, operator.port), **variables):
        reported = operator.wait_for("failed")
    assert reported["failure"]["code"] == 94
    assert "a matrix product of worker 1 takes 9 ms" in reported["failure"]["message"]
    assert not (folder / "ran2").exists()


def test_next_attempt_without_it_starts_at_once(program: Path, folder: Path, operator: FakeOperator) -> None:
    fake_comparison(folder, "os._exit(92)")
    script = f'{RANK_PRELUDE}\nrecord(f"ran{{R}}-{{A}}", "yes")'
    variables = {"TRAINYARD_PREFLIGHT": "quick", "PYTHONPATH": str(folder), **WARM_START_OFF}
    with running_agent(program, folder, script, **credentials(folder, operator.port), **variables) as run:
        assert operator.wait_for("failed")["failure"]["code"] == 92
        operator.order(2, run=True, TRAINYARD_PREFLIGHT="")
        assert run.wait()[0] == 0
    assert (folder / "ran2-2").exists()
    assert not (folder / "ran2-1").exists()


def test_duration_is_reported_with_the_steps(program: Path, folder: Path, operator: FakeOperator) -> None:
    fake_comparison(folder, "open(os.environ['TRAINYARD_PREFLIGHT_SECONDS_FILE'], 'w').write('3.25'); os._exit(0)")
    script = f"{RANK_PRELUDE}\nfrom trainyard_agent import progress\nprogress(1)"
    variables = {"TRAINYARD_PREFLIGHT": "quick", "PYTHONPATH": str(folder), **WARM_START_OFF}
    with running_agent(program, folder, script, **credentials(folder, operator.port), **variables) as run:
        assert run.wait()[0] == 0
    assert operator.reports[-1]["preflight_seconds"] == 3.2
