"""The standard input of the container (`stdin`, `tty`) reaches the program, if it is one process."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agent.worker_environment import WORKER_VARIABLES

READ = "import os, sys; os.write(1, f'read {sys.stdin.readline()!r} {sys.stdin.isatty()}\\n'.encode())"
"""One write: `print` makes several where Python does not buffer, and those of two ranks mix."""


def start(program: Path, folder: Path, options: list[str], processes: int, stdin: int) -> "subprocess.Popen[str]":
    variables = {**os.environ, **WORKER_VARIABLES, "TRAINYARD_PROCESSES_PER_REPLICA": str(processes)}
    return subprocess.Popen(
        [sys.executable, str(program), *options, "--", sys.executable, "-c", READ],
        env={**variables, "TRAINYARD_TERMINATION_LOG": str(folder / "log")},
        cwd=folder,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("options", "processes"), [([], 1), (["--once"], 1), (["--once"], 4)])
def test_one_process_reads_it(program: Path, tmp_path: Path, options: list[str], processes: int) -> None:
    made = start(program, tmp_path, options, processes, subprocess.PIPE)
    assert made.communicate("continue\n", timeout=60)[0] == "read 'continue\\n' False\n"
    assert made.returncode == 0


def test_one_process_reads_a_terminal(program: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    made = start(program, tmp_path, [], 1, theirs)
    os.write(ours, b"continue\n")
    assert made.communicate(timeout=60)[0] == "read 'continue\\n' True\n"
    os.close(ours)
    os.close(theirs)


def test_several_processes_read_nothing(program: Path, tmp_path: Path) -> None:
    made = start(program, tmp_path, [], 2, subprocess.PIPE)
    assert made.communicate("continue\n", timeout=60)[0] == "read '' False\n" * 2


def test_container_without_input_reads_nothing(program: Path, tmp_path: Path) -> None:
    assert start(program, tmp_path, [], 1, subprocess.DEVNULL).communicate(timeout=60)[0] == "read '' False\n"
