"""Where the ranks of a worker that hangs stand, and which of them is the odd one out."""

import faulthandler
import threading
from pathlib import Path

import pytest

from trainyard_agent.hang import Hang
from trainyard_agent.stacks import by_rank, message, odd_one_out, stack

HANG = Hang(rank=2, step=120, phase="train", seconds=41.7, usual=1.23)


def dump(*frames: tuple[str, int, str]) -> str:
    """As Python 3.9 to 3.14 write it, with another thread and what was said before."""
    lines = "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in frames)
    return (
        "step 119 done\nFatal Python error: Aborted\n\n"
        'Thread 0x00007f3b2bfff640 (most recent call first):\n  File "/usr/lib/threading.py", line 320 in wait\n\n'
        f"Current thread 0x00007f3b2c9c1740 (most recent call first):\n{lines}\n"
        "Extension modules: numpy.core._multiarray_umath (total: 1)\n"
    )


WAITS = dump(("/app/distributed_c10d.py", 2806, "all_reduce"), ("train.py", 80, "main"))
LOADS = dump(("data.py", 12, "load"), ("train.py", 71, "main"))


def test_the_frames_of_the_main_thread_are_read() -> None:
    assert stack(WAITS) == ["distributed_c10d.py:2806 in all_reduce", "train.py:80 in main"]
    assert stack(
        LOADS.replace("Current thread 0x00007f3b2c9c1740 (", "Current thread 0x00007f3b2c9c1740 [python] (")
    ) == [
        "data.py:12 in load",
        "train.py:71 in main",
    ]
    assert stack("killed\n") == []


def test_the_frames_that_call_a_forked_program_are_none_of_it() -> None:
    called = dump(
        ("data.py", 12, "load"),
        ("train.py", 71, "<module>"),
        ("<string>", 9, "run_the_program"),
        ("<string>", 20, "<module>"),
    )
    assert stack(called) == ["data.py:12 in load", "train.py:71 in <module>"]
    assert stack(dump(("<string>", 3, "load"), ("<string>", 9, "<module>"))) == [
        "<string>:3 in load",
        "<string>:9 in <module>",
    ]


def test_what_this_python_writes_is_understood(tmp_path: Path) -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    with (tmp_path / "dump").open("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        said = file.read()
    done.set()
    other.join()
    assert stack(said)[0].startswith("test_stacks.py:")


@pytest.mark.parametrize(
    ("said", "odd"),
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
def test_the_odd_one_out(said: list[str], odd: int | None) -> None:
    assert odd_one_out({rank: stack(words) for rank, words in enumerate(said)}) == odd


STOPPED = ["(stopped by a signal)"]


@pytest.mark.parametrize(("silent", "odd"), [((1,), 1), ((1, 2), None), ((0, 1, 2), None)])
def test_one_that_does_not_answer_needs_no_third_to_compare_it_with(silent: tuple[int, ...], odd: int | None) -> None:
    assert odd_one_out({0: stack(WAITS), **dict.fromkeys(silent, STOPPED)}) == odd


def test_the_message_names_rank_time_step_and_place() -> None:
    told, *rest = message(HANG, by_rank({0: WAITS, 1: WAITS, 2: WAITS, 3: LOADS})).splitlines()
    assert told == (
        "rank 3 hangs: no progress for 42 seconds after step 120 (a step takes 1.2 seconds as a rule); it stands at"
        " data.py:12 in load, all others elsewhere"
    )
    assert rest[0] == '{"step": 120}'
    assert rest[1] == "rank 0: distributed_c10d.py:2806 in all_reduce < train.py:80 in main"
    assert rest[4] == "rank 3: data.py:12 in load < train.py:71 in main"


def test_without_stacks_the_rank_is_named_all_the_same() -> None:
    hang = HANG._replace(step=None, phase="start", usual=None)
    assert message(hang, by_rank({2: "killed"})) == "rank 2 hangs: no progress for 42 seconds, in phase start"


def test_the_message_is_no_longer_than_the_kubelet_takes() -> None:
    deep = dump(*((f"module{i}.py", i, "f" * 50) for i in range(100)))
    assert len(message(HANG, by_rank(dict.fromkeys(range(8), deep))).encode()) <= 4096
