"""Where the ranks of a hung worker are, and which of them the others wait for."""

import faulthandler
import threading
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import displayed
from trainyard_agent.hang import Hang
from trainyard_agent.stacks import describe_hang, frames, frames_by_rank, outlier
from trainyard_agent.termination_message import write

HANG = Hang(rank=2, step=120, phase="train", seconds=41.7, usual=1.23)


def dump(*frames: tuple[str, int, str]) -> str:
    """As Python 3.9 to 3.14 write it, with another thread and earlier output."""
    lines = "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in frames)
    return (
        "step 119 done\nFatal Python error: Aborted\n\n"
        'Thread 0x00007f3b2bfff640 (most recent call first):\n  File "/usr/lib/threading.py", line 320 in wait\n\n'
        f"Current thread 0x00007f3b2c9c1740 (most recent call first):\n{lines}\n"
        "Extension modules: numpy.core._multiarray_umath (total: 1)\n"
    )


WAITS = dump(("/app/distributed_c10d.py", 2806, "all_reduce"), ("train.py", 80, "main"))
LOADS = dump(("data.py", 12, "load"), ("train.py", 71, "main"))


def test_main_thread_frames_are_read() -> None:
    assert frames(WAITS) == ["distributed_c10d.py:2806 in all_reduce", "train.py:80 in main"]
    named = LOADS.replace("Current thread 0x00007f3b2c9c1740 (", "Current thread 0x00007f3b2c9c1740 [python] (")
    assert frames(named) == ["data.py:12 in load", "train.py:71 in main"]
    assert frames("killed\n") == []


def test_forkserver_frames_are_left_out() -> None:
    called = dump(
        ("data.py", 12, "load"),
        ("train.py", 71, "<module>"),
        ("<string>", 9, "run_program"),
        ("<string>", 20, "<module>"),
    )
    assert frames(called) == ["data.py:12 in load", "train.py:71 in <module>"]
    assert frames(dump(("<string>", 3, "load"), ("<string>", 9, "<module>"))) == [
        "<string>:3 in load",
        "<string>:9 in <module>",
    ]


def test_dump_of_this_python_is_read(tmp_path: Path) -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    with (tmp_path / "dump").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read()
    done.set()
    other.join()
    assert frames(text)[0].startswith("test_stacks.py:")


@pytest.mark.parametrize(
    ("texts", "odd"),
    [
        ([WAITS, WAITS, LOADS, WAITS], 2),
        ([LOADS, WAITS, WAITS], 0),
        ([WAITS, WAITS, WAITS], None),
        ([WAITS, LOADS], None),
        ([WAITS, WAITS, LOADS, LOADS], None),
        ([WAITS, "", WAITS, LOADS], 3),
        ([WAITS, "", ""], None),
    ],
)
def test_outlier(texts: list[str], odd: int | None) -> None:
    assert outlier(frames_by_rank(dict(enumerate(texts))), {}) == odd


@pytest.mark.parametrize(("blocked", "odd"), [((1,), 1), ((1, 2), None)])
def test_blocked_rank_needs_no_third(blocked: tuple[int, ...], odd: int | None) -> None:
    assert outlier({0: frames(WAITS)}, dict.fromkeys(blocked, "stopped")) == odd
    assert outlier({}, dict.fromkeys(blocked, "stopped")) is None


def test_message_names_rank_time_step_place() -> None:
    made = describe_hang(HANG, frames_by_rank({0: WAITS, 1: WAITS, 2: WAITS, 3: LOADS}), {}, 91)
    headline, *rest = displayed(write(*made)).splitlines()
    assert headline == (
        "rank 3 is hung at data.py:12 in load: no progress for 42 seconds after step 120 (usual step time 1.2 s);"
        " all other ranks of the worker are elsewhere"
    )
    assert rest[0] == "rank 0: distributed_c10d.py:2806 in all_reduce < train.py:80 in main"
    assert rest[3] == "rank 3: data.py:12 in load < train.py:71 in main"


def test_blocked_rank_is_named_with_reason() -> None:
    data, text = describe_hang(HANG, frames_by_rank({0: WAITS, 1: WAITS}), {2: "uninterruptible"}, 91, "a note")
    assert (data.rank, data.blocked, data.outlier, data.location) == (2, "uninterruptible", True, "")
    assert text.splitlines()[2:] == [
        "rank 2: (blocked in the kernel: a disk, a file server, or the driver of a device)",
        "a note",
    ]


def test_rank_is_named_without_stacks() -> None:
    hang = HANG._replace(step=None, phase="start", usual=None)
    made = describe_hang(hang, frames_by_rank({2: "killed"}), {}, 91)
    assert displayed(write(*made)) == "rank 2 is hung: no progress for 42 seconds, in phase start"


def test_message_fits_into_the_kubelets_limit() -> None:
    deep = dump(*((f"module{i}.py", i, "f" * 50) for i in range(100)))
    made = write(*describe_hang(HANG, frames_by_rank(dict.fromkeys(range(8), deep)), {}, 91))
    assert len(made.encode()) <= 4096
