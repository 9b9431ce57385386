"""The ranks of a `deepspeed` command, which the agent starts in place of its launcher."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.rank_scripts import WARM_START_OFF
from trainyard_agent.deepspeed import Ranks, ranks

PYTHON = ["/opt/python3"]


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A launcher as pip installs it, which records that it was started."""
    path = tmp_path / "bin/deepspeed"
    path.parent.mkdir()
    path.write_text(f"#!{PYTHON[0]}\n")
    return path


def of(launcher: Path, *arguments: str) -> Ranks | None:
    return ranks(["deepspeed", *arguments], {"PATH": f"/nowhere:{launcher.parent}"})


@pytest.mark.parametrize(
    ("arguments", "words", "unused"),
    [
        (["train.py"], ["-u", "train.py"], []),
        (["train.py", "--deepspeed", "--lr", "1"], ["-u", "train.py", "--deepspeed", "--lr", "1"], []),
        (
            ["--num_gpus", "4", "train.py", "--num_gpus", "2"],
            ["-u", "train.py", "--num_gpus", "2"],
            ["--num_gpus", "4"],
        ),
        (["--hostfile=/job/hostfile", "-q", "t.py"], ["-u", "t.py"], ["--hostfile=/job/hostfile", "-q"]),
        (
            ["-H", "hosts", "--no_ssh", "--node_rank", "1", "t.py"],
            ["-u", "t.py"],
            ["-H", "hosts", "--no_ssh", "--node_rank", "1"],
        ),
        (["--module", "package.train", "-x"], ["-u", "-m", "package.train", "-x"], []),
    ],
)
def test_python_program_runs_for_each_rank(
    launcher: Path, arguments: Sequence[str], words: Sequence[str], unused: Sequence[str]
) -> None:
    at = 1 + words.index(next(word for word in words if not word.startswith("-")))
    assert of(launcher, *arguments) == Ranks([*PYTHON, *words], 1 + at, unused)


def test_launcher_flags_are_followed(launcher: Path) -> None:
    assert of(launcher, "--no_local_rank", "t.py", "a") == Ranks([*PYTHON, "-u", "t.py", "a"], None, [])
    assert of(launcher, "--no_python", "./train", "a") == Ranks(["./train", "a"], 1, [])


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--num_gpus", "2"],
        ["--include", "localhost:0", "t.py"],
        ["--autotuning", "run", "t.py"],
        ["--bind_cores_to_rank", "t.py"],
        ["--enable_each_rank_log", "logs", "t.py"],
        ["--num_gpu", "2", "t.py"],
        ["--quiet=1", "t.py"],
        ["--module", "--no_python", "t.py"],
    ],
)
def test_other_options_need_the_launcher(launcher: Path, arguments: Sequence[str]) -> None:
    assert of(launcher, *arguments) is None


@pytest.mark.parametrize(
    ("first", "interpreter"),
    [
        ("#!/usr/bin/env python3", ["python3"]),
        ("#! /opt/conda/bin/python -E", ["/opt/conda/bin/python"]),
        ("#!/bin/sh", None),
        ("#!", None),
        ("import deepspeed", None),
        ("", None),
    ],
)
def test_interpreter_is_that_of_the_launcher(launcher: Path, first: str, interpreter: list[str] | None) -> None:
    launcher.write_text(f"{first}\n")
    found = of(launcher, "t.py")
    assert (found.words[:-2] if found else None) == interpreter


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["{launcher}", "t.py"], PYTHON),
        (["python3", "-m", "deepspeed.launcher.runner", "t.py"], ["python3"]),
        (["/usr/bin/python3", "{launcher}", "t.py"], ["/usr/bin/python3"]),
        (["python3", "t.py"], None),
        (["torchrun", "t.py"], None),
        (["python3"], None),
        (["./deepspeed", "t.py"], None),
    ],
)
def test_launcher_is_found(launcher: Path, words: Sequence[str], start: list[str] | None) -> None:
    found = ranks([word.format(launcher=launcher) for word in words], {})
    assert (found.words if found else None) == (start and [*start, "-u", "t.py"])


SCRIPT = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE")
with open(f"{os.environ['FOLDER']}/rank-{os.environ['RANK']}", "w") as file:
    json.dump([sys.argv[1:], [os.environ[name] for name in names]], file)
sys.exit(int(os.environ.get("CODE", "0")))
"""


def run(program: Path, folder: Path, *options: str, **environment: str) -> tuple[int, str, dict[str, object]]:
    """Run the agent with a `deepspeed` command. Return its code, its log, and what each rank found."""
    launcher = folder / "bin/deepspeed"
    launcher.write_text(f"#!{sys.executable}\nimport os, sys\nsys.exit('the launcher ran')\n")
    launcher.chmod(0o755)
    (folder / "train.py").write_text(SCRIPT)
    command = ("--once", "--", str(launcher), *options, "train.py", "--lr", "1")
    process = AgentProcess(program, folder, *command, **WARM_START_OFF, **environment)
    code, log = process.wait()
    return code, log, {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("rank-*"))}


@pytest.mark.usefixtures("launcher")
def test_agent_starts_each_rank(program: Path, tmp_path: Path) -> None:
    code, log, found = run(program, tmp_path, "--num_gpus", "8", MASTER_ADDR="job-worker-0.job")
    assert (code, "not used: --num_gpus 8" in log) == (0, True)
    assert found == {
        "rank-2": [["--local_rank=0", "--lr", "1"], ["2", "0", "4", "1", "2", "2"]],
        "rank-3": [["--local_rank=1", "--lr", "1"], ["3", "1", "4", "1", "2", "2"]],
    }


@pytest.mark.usefixtures("launcher")
def test_failed_rank_fails_the_worker(program: Path, tmp_path: Path) -> None:
    code, log, _ = run(program, tmp_path, CODE="7", MASTER_ADDR="job-worker-0.job")
    assert (code, "kind=failed rank=" in log) == (7, True)


@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize(("options", "environment"), [(["--include", "x:0"], {"MASTER_ADDR": "a"}), ([], {})])
def test_launcher_runs_where_the_agent_cannot(
    program: Path, tmp_path: Path, options: list[str], environment: dict[str, str]
) -> None:
    code, log, found = run(program, tmp_path, *options, **environment)
    assert (code, "the launcher ran" in log, found) == (1, True, {})
