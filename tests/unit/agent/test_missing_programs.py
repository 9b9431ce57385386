"""What to install where an image lacks the program of a command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.worker_environment import AGENT_SOURCE
from trainyard_agent.failure_cause import failure_cause
from trainyard_agent.missing_programs import missing_fix


@pytest.mark.parametrize("command", [["mpirun", "python3", "t.py"], ["/usr/bin/no-such/mpirun"]])
def test_missing_launcher_is_named_with_its_package(program: Path, folder: Path, command: list[str]) -> None:
    # Where this machine has one, it is not found.
    run = AgentProcess(program, folder, "--once", "--", *command, PATH="/nowhere")
    assert run.wait()[0] == 127
    assert run.message.endswith(
        f"cannot start {command[0]}: No such file or directory; install an MPI, the same in the image of all workers"
        " (Debian: openmpi-bin)"
    )


def test_unknown_program_has_no_package(program: Path, folder: Path) -> None:
    run = AgentProcess(program, folder, "--", "./train", PATH="/nowhere")
    assert run.wait()[0] == 127
    assert run.message.endswith("cannot start ./train: No such file or directory")
    assert missing_fix("") == ""


@pytest.mark.parametrize(
    "module", ["tensorflow", "jax", "ray", "xgboost", "lightgbm", "deepspeed", "megatron", "mpi4py"]
)
def test_missing_library_has_a_cause(tmp_path: Path, module: str) -> None:
    """Of each framework, imported or run by its name. The operator knows the fix of this cause."""
    blocked = tmp_path / "sitecustomize.py"
    blocked.write_text(
        "import sys\n"
        "class Finder:\n"
        f"    def find_spec(self, name, *_):\n        if name.partition('.')[0] == {module!r}:"
        ' raise ModuleNotFoundError(f"No module named {name!r}", name=name)\n'
        "sys.meta_path.insert(0, Finder())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for words in (["-c", f"import {module}"], ["-m", module, "train.py"]):
        done = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, check=False, cwd=AGENT_SOURCE
        )
        lines = done.stderr.strip().splitlines()
        exception = lines[-1] if lines[0].startswith("Traceback") else ""
        assert failure_cause(exception, done.stderr if exception else "", done.stderr) == "missingModule", done.stderr
