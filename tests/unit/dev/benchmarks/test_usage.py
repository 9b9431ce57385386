import os
from pathlib import Path

from dev.benchmarks.scale import usage
from dev.benchmarks.scale.usage import TICKS, Usage

STAT = "7 (a (strange) name) S 1 7 7 0 -1 4194560 100 0 0 0 {} {} {} {} 20 0 1 0 5 0 0"
STATUS = "Name:\tx\nVmPeak:\t  999999 kB\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\n"


def process(proc: Path, pid: int, ticks: int, children: str = "") -> None:
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "stat").write_text(STAT.format(ticks, 0, 0, 0))
    (folder / "status").write_text(STATUS)
    (folder / "task" / str(pid) / "children").write_text(children)


def test_cpu_time_includes_system_mode_and_exited_children() -> None:
    assert usage.parse(STAT.format(3 * TICKS, 2 * TICKS, TICKS, TICKS), STATUS) == Usage(cpu_s=7.0, peak_mib=20.0)


def test_a_process_counts_with_what_it_has_forked(tmp_path: Path) -> None:
    process(tmp_path, 7, TICKS, children="8 9")
    process(tmp_path, 8, 2 * TICKS)
    assert usage.of([7], tmp_path) == Usage(cpu_s=3.0, peak_mib=40.0)


def test_this_very_process_can_be_read() -> None:
    assert usage.of([os.getpid()]).peak_mib > 1


def test_exited_process_counts_nothing(tmp_path: Path) -> None:
    assert usage.of([7], tmp_path) == Usage()
