"""Which programs count though they record nothing about themselves."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard_agent import processes
from trainyard_agent.unobserved_programs import UnobservedPrograms

SLEEPS = "import mmap, sys, time\n{extra}\nprint('ready', flush=True)\ntime.sleep(600)\n"
MAPS_TORCH = "file = open('torch/lib/libtorch.so', 'r+b'); mapped = mmap.mmap(file.fileno(), 0)"
STARTS = "import subprocess\nchild = subprocess.Popen([sys.executable, '-I', 'sleeps.py'])"


@contextmanager
def running(folder: Path, script: str, ready: int = 1) -> Iterator[int]:
    """Run a script of the shell until its programs are ready. Yields its PID."""
    made = subprocess.Popen(["sh", "-c", f"{script}; exit"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert made.stdout is not None
        assert [made.stdout.readline() for _ in range(ready)] == ["ready\n"] * ready
        yield made.pid
    finally:
        for pid in [made.pid, *processes.descendants(made.pid)]:
            processes.send(9, pid)
        made.communicate(timeout=60)


def write(folder: Path, name: str, extra: str = "") -> None:
    (folder / name).write_text(SLEEPS.format(extra=extra))


def test_program_below_shell_is_found(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    with running(tmp_path, f"RANK=3 {sys.executable} -I train.py") as shell:
        found = [*UnobservedPrograms(lambda: [shell], 9).look(()).values()]
    assert [(each.rank, each.program, each.is_rank, each.trains) for each in found] == [(3, "train.py", True, False)]


def test_observed_program_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    with running(tmp_path, f"{sys.executable} -I train.py") as shell:
        observed = processes.descendants(shell)
        assert UnobservedPrograms(lambda: [shell], 9).look(observed) == {}


def test_number_of_programs_is_limited(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    start = f"{sys.executable} -I train.py"
    with running(tmp_path, f"{start} & {start} & {start}", ready=3) as shell:
        assert len(UnobservedPrograms(lambda: [shell], 2).look(())) == 2


def test_known_program_is_returned_once(tmp_path: Path) -> None:
    write(tmp_path, "train.py")
    with running(tmp_path, f"{sys.executable} -I train.py") as shell:
        programs = UnobservedPrograms(lambda: [shell], 9)
        assert [len(programs.look(())), len(programs.look(()))] == [1, 0]


def test_loaded_framework_means_training(tmp_path: Path) -> None:
    (tmp_path / "torch/lib").mkdir(parents=True)
    (tmp_path / "torch/lib/libtorch.so").write_bytes(b"x")
    write(tmp_path, "train.py", MAPS_TORCH)
    with running(tmp_path, f"{sys.executable} -I train.py") as shell:
        assert [each.trains for each in UnobservedPrograms(lambda: [shell], 9).look(()).values()] == [True]


def test_helper_of_a_program_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "sleeps.py")
    write(tmp_path, "train.py", STARTS)
    with running(tmp_path, f"{sys.executable} -I train.py", ready=2) as shell:
        found = UnobservedPrograms(lambda: [shell], 9).look(())
    assert [each.program for each in found.values()] == ["train.py"]


def test_rank_below_a_launcher_is_found(tmp_path: Path) -> None:
    write(tmp_path, "sleeps.py")
    write(tmp_path, "torchrun", STARTS)
    with running(tmp_path, f"{sys.executable} -I torchrun", ready=2) as shell:
        launcher = {pid for pid, each in processes.processes_by_pid().items() if each.parent == shell}
        found = [*UnobservedPrograms(lambda: [shell], 9).look(()).values()]
    assert [(each.program, {each.started_by}) for each in found] == [("sleeps.py", launcher)]
