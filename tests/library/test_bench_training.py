"""The benchmark measures what it says: all programs do the same, and go on where they were."""

import io
import json
import math
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from dev.benchmarks.training import exchange, saving, writer_share
from dev.benchmarks.training.loop import SYSTEMS
from dev.benchmarks.training.ranks import Group, started, wait
from tests.library.support.processes import run
from tests.library.support.programs import free_port

LAST, TOTAL = 9, 12


def losses(system: str, folder: Path, until: int) -> dict[int, float]:
    """Of each step that two processes have done, the mean over both."""
    words = [f"dev.benchmarks.training.programs.{SYSTEMS[system]}", "--size", "tiny", "--in-order"]
    numbers = {"steps": until, "total": TOTAL, "save-every": 4, "print-every": 1}
    words += [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    group = Group(2, count=2, port=free_port())
    with started([*words, "--folder", str(folder)], group, first_output=subprocess.PIPE) as processes:
        records_of, _ = processes[0].communicate(timeout=300)
        assert wait(processes) == 0
    return {int(step): float(loss) for step, loss in re.findall(r"step (\d+) loss ([\d.]+)", records_of)}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return losses("plain", tmp_path_factory.mktemp("plain"), LAST)


@pytest.mark.parametrize("system", ["plain", "trainyard", "accelerate", "fabric"])
def test_all_do_the_same_task_in_two_starts(by_hand: dict[int, float], tmp_path: Path, system: str) -> None:
    first, then = losses(system, tmp_path, 6), losses(system, tmp_path, LAST)
    assert ([*first], [*then]) == ([*range(1, 7)], [*range(7, LAST + 1)])
    # Sums have another order in each.
    assert first | then == pytest.approx(by_hand, rel=2e-5)


def records_of(port: int, module: Any, *words: str) -> list[dict[str, Any]]:
    """What it prints, run in a rank of the harness."""
    # The harness has made a group; the program makes its own.
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(port)
    sys.argv = [module.__name__, *words]
    with redirect_stdout(io.StringIO()) as out:
        assert module.main() == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def records_of_all(world_size: int, folder: Path, act: Any, *words: str) -> list[dict[str, Any]]:
    first, *others = run(world_size, folder, act, free_port(), *words)
    assert not any(others), "the first alone speaks"
    return list(first)


def save(port: int, *words: str) -> list[dict[str, Any]]:
    return records_of(port, saving, *words)


def exchanged(port: int, *words: str) -> list[dict[str, Any]]:
    return records_of(port, exchange, *words)


def test_each_save_mode_is_measured_and_cleaned_up(tmp_path: Path) -> None:
    (disk := tmp_path / "disk").mkdir()
    before = {*Path("/dev/shm").iterdir()}  # noqa: S108
    words = ("--repeats", "1", "--steps", "1000", "--width", "64", "--folder", str(disk))
    found = records_of_all(2, tmp_path, save, *words)
    kinds = [kind for record in found for kind in record]
    assert [kinds.count(kind) for kind in ("state", "saved", "default", "restored")] == [1, 5, 1, 4]
    ours = [record["saved"]["stall"] for record in found if record.get("saved", {}).get("how") == "trainyard"]
    assert all(0 < stall < 5 for stall in ours)
    assert not [*disk.iterdir()]
    assert not [path for path in {*Path("/dev/shm").iterdir()} - before if path.name.startswith("trainyard-bench")]  # noqa: S108


def test_writer_is_measured_as_thread_and_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--repeats", "1", "--seconds", "0.3", "--tensors", "1", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["writer_share", *words])
    assert writer_share.main() == 0
    found = [json.loads(line)["share"] for line in capsys.readouterr().out.splitlines()]
    assert [each["how"] for each in found] == [writer_share.NOTHING, writer_share.THREAD, writer_share.PROCESS]
    assert all(each["steps_per_second"] > 0 for each in found)
    assert not [*tmp_path.iterdir()]


def test_each_way_to_communicate_trains_and_is_counted(tmp_path: Path) -> None:
    found = records_of_all(4, tmp_path, exchanged, "--repeats", "1", "--steps", "32")
    by_way = {record["exchanged"]["way"]: record["exchanged"] for record in found}
    assert [*by_way] == [*exchange.WAYS]
    for way in by_way.values():
        (_, first), (_, last) = way["curve"]
        assert last < first < math.log(exchange.KINDS) * 1.05
    exact = by_way["DDP"]
    assert by_way["fp16"]["curve"][-1][1] == pytest.approx(exact["curve"][-1][1], rel=0.02)
    assert by_way["DiLoCo"]["bytes"] < exact["bytes"]


def test_bytes_of_an_interface_go_to_and_fro(tmp_path: Path) -> None:
    table = tmp_path / "dev"
    table.write_text(
        "Inter-|   Receive                          |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
        "    lo:     100       2    0    0    0     0          0         0      100       2    0    0    0     0       0          0\n"
        "cable@if2: 1      1    0    0    0     0          0         0        2       1    0    0    0     0       0          0\n"
        " cable:1000       9    0    0    0     0          0         0       30       7    0    0    0     0       0          0\n"
    )
    assert exchange.passed("cable", table) == 1030
    with pytest.raises(ValueError, match="no interface other"):
        exchange.passed("other", table)


def test_start_up_counts_groups_and_sockets() -> None:
    words = ("-m", "dev.benchmarks.training.start_up", "--ranks", "4", "--repeats", "1")
    out = subprocess.run([sys.executable, *words], check=True, capture_output=True, text=True, timeout=300).stdout
    found = {(record["start"], record["layout"]): record for record in map(json.loads, out.splitlines())}
    assert [*found] == [(way, layout) for layout in ("fsdp", "hsdp") for way in ("group each", "start()")]
    counts = {key: (record["new_group"], record["groups"], record["sockets"]) for key, record in found.items()}
    # Three groups of all, the store, and the group of this rank alone; HSDP has two groups of two beside.
    assert counts["start()", "fsdp"] == (3, 4, 3 * 4 + 1 + 1)
    assert counts["start()", "hsdp"] == (3 + 2 + 2, 6, 3 * 4 + 1 + 1 + 2 * 2)
    # Four dimensions of one process, and one group more for each of two users.
    assert counts["group each", "fsdp"] >= (4 * 4 + 4, 1 + 4 + 4, 5 * 4 + 4 + 1)
