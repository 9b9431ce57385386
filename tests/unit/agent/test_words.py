"""What is kept of a rank's last words, and the sentence that is made of them."""

import pytest

from trainyard.api.recovery import PEER_LOST_CODE
from trainyard.domain import wording
from trainyard.domain.recovery import root_cause
from trainyard_agent import words
from trainyard_agent.memory import Memory
from trainyard_agent.tracebacks import BEGIN
from trainyard_agent.words import KEPT, LONGEST, Tail, cut, how, lost_a_peer, message, of_rank, of_ranks

NOBODY = Memory(None, None, None)
ONE = f'{BEGIN}\n  File "a.py", line 1, in <module>\n    f()\nValueError: one'


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (1, "ended with exit code 1"),
        (137, "was killed by SIGKILL"),
        (139, "was killed by SIGSEGV"),
        (255, "ended with exit code 255"),
    ],
)
def test_an_end_in_words(code: int, told: str) -> None:
    assert how(code) == told


def test_the_exception_stands_in_the_first_line() -> None:
    assert (
        message("rank 3", 1, f"step 7\n{ONE}\n", NOBODY, NOBODY)
        == f"rank 3 ended with exit code 1: ValueError: one\n{ONE}"
    )


def test_without_a_traceback_the_last_lines_tell() -> None:
    assert message("rank 0", 139, "loading\n", NOBODY, NOBODY) == "rank 0 was killed by SIGSEGV\nloading"
    assert message("rank 0", 135, "loading\n", NOBODY, NOBODY).startswith(
        "rank 0 was killed by SIGBUS: memory that it had"
    )
    assert message("rank 0", 1, "", NOBODY, NOBODY) == "rank 0 ended with exit code 1"
    told = "rank 0 ended with exit code 3: cannot find the data\nloading\ncannot find the data"
    assert message("rank 0", 3, "loading\ncannot find the data\n\n", NOBODY, NOBODY) == told


LOGGED = f"trying again\n{ONE}\n"
ABORTED = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [Rank 1] NCCL watchdog thread terminated with exception: CUDA error\nframe #0: c10::Error::Error\n"
)
PEER = f'{BEGIN}\n  File "t.py", line 1, in f\nRuntimeError: [gloo] Connection closed by peer [127.0.0.1]:7\n'
AT_EXIT = f'Exception ignored in: <_io.TextIOWrapper>\n{BEGIN}\n  File "t.py", line 1, in g\nBrokenPipeError: [Errno 32] Broken pipe\n'


@pytest.mark.parametrize(
    ("code", "said", "first"),
    [
        (137, LOGGED, "rank 0 was killed by SIGKILL"),
        (143, f"{LOGGED}step 8", "rank 0 was killed by SIGTERM"),
        (139, LOGGED, "rank 0 was killed by SIGSEGV: ValueError: one"),
        (139, LOGGED + "step 8\n" * 30, "rank 0 was killed by SIGSEGV"),
        (
            134,
            f"{LOGGED}{ABORTED}",
            "rank 0 was killed by SIGABRT: c10::DistBackendError: [Rank 1] NCCL watchdog thread terminated with exception: CUDA error",
        ),
        (134, "terminate called after throwing an instance of 'int'\n", "rank 0 was killed by SIGABRT: int"),
        (1, f"{ONE}\n{AT_EXIT}", "rank 0 ended with exit code 1: ValueError: one"),
        (255, LOGGED, "rank 0 ended with exit code 255: ValueError: one"),
    ],
)
def test_after_a_signal_an_exception_is_told_only_where_it_came_at_the_end(code: int, said: str, first: str) -> None:
    told = message("rank 0", code, said, NOBODY, NOBODY)
    assert told.splitlines()[0] == first
    assert said.strip()[-20:] in told or code in {1, 139}


@pytest.mark.parametrize(
    ("code", "said", "victim"),
    [
        (1, PEER, True),
        (1, f"{PEER}{AT_EXIT}", True),
        (1, f"{ONE}\n{AT_EXIT}", False),
        (1, f"{PEER}\ngoing on\n{ONE}\n", False),
        (134, ABORTED, True),
        (137, PEER, True),
        (137, f"{PEER}trying again\n", False),
        (92, "", True),
        (1, "RendezvousConnectionError: gone", True),
    ],
)
def test_a_victim_is_known_by_what_has_ended_it(code: int, said: str, *, victim: bool) -> None:
    assert lost_a_peer(code, said) is victim


def test_a_kill_for_want_of_memory_is_told_with_what_was_used() -> None:
    before, after = Memory(2, None, None), Memory(3, 1 << 29, 1 << 29)
    assert message("rank 1", 137, "", before, after) == (
        "rank 1 was killed by SIGKILL: out of memory: the kernel killed 1 of its processes"
        ", 512 MiB were in use at most; the limit is 512 MiB"
    )
    assert "out of memory" not in message("rank 1", 137, "", after, after)
    assert "out of memory" not in message("rank 1", 137, "", before, NOBODY)


def test_one_of_long_ago_is_told_but_not_as_the_cause() -> None:
    before, after = Memory(2, None, None), Memory(4, None, None)
    told = message("rank 1", 1, ONE, before, after, ago=300.0).splitlines()[0]
    assert told == (
        "rank 1 ended with exit code 1: ValueError: one"
        " (300 seconds before, out of memory, the kernel had killed 2 of its processes)"
    )
    assert not wording.out_of_memory(told)
    assert wording.out_of_memory(message("rank 1", 1, ONE, before, after, ago=3.0))


@pytest.mark.parametrize("letter", ["x", "ü", "\ud800", "\x00"])
def test_a_message_is_never_too_long(letter: str) -> None:
    made = message("rank 0", 1, f"{ONE}\n{letter * 10_000}\n{ONE}{letter * 10_000}", NOBODY, NOBODY)
    assert len(made.encode()) <= LONGEST
    assert made.startswith("rank 0 ended with exit code 1: ValueError: one")
    assert len(cut("a" * 9000, "b" * 9000).encode()) <= LONGEST


def test_the_end_of_a_stream_is_kept_and_no_more() -> None:
    tail = Tail()
    for number in range(100_000):
        tail.feed(b"%d\n" % number)
    assert tail.text.endswith("99998\n99999\n")
    assert len(tail.text) == KEPT
    tail.feed(b"\xff\xfe")
    assert tail.text.endswith("��")


def test_the_last_step_is_the_second_line_however_long_the_rest_is() -> None:
    """Where the kubelet keeps the begin alone, in a pod of many containers, the step is there."""
    for said in ("", "boom", "x" * 10_000):
        told = message("rank 3", 1, said, NOBODY, NOBODY, 120)
        assert told.splitlines()[1] == '{"step": 120}'
        assert len(told.encode()) <= 4096


RANK_3 = "".join(f"[rank3]: {line}\n" for line in ONE.splitlines())
RANK_1 = RANK_3.replace("rank3", "rank1").replace("ValueError: one", "DistBackendError: lost")
TORCHRUN = (
    "E1122 10:00:00 api.py:869] failed (exitcode: 1) local_rank: 3 (pid: 7) of binary: python\n"
    'Traceback (most recent call last):\n  File "/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n====\n"
)
ACCELERATE = (
    'Traceback (most recent call last):\n  File "/bin/accelerate", line 8, in <module>\n    sys.exit(main())\n'
    "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.\n"
)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(f"step 7\n{RANK_3}{RANK_1}{TORCHRUN}", id="the first of several ranks"),
        pytest.param(f"{ONE}\n{TORCHRUN}", id="before there is a process group"),
        pytest.param(f"{ONE}\n{TORCHRUN}{ACCELERATE}", id="accelerate, which has started torchrun"),
        pytest.param(f"step 7\n{ONE}", id="no launcher"),
    ],
)
def test_of_a_launcher_what_its_ranks_have_said_counts(said: str) -> None:
    told = message("the command", 1, of_ranks(said), NOBODY, NOBODY)
    assert told == f"the command ended with exit code 1: ValueError: one\n{ONE}"


def test_a_launcher_alone_is_told_by_its_lines() -> None:
    said = of_ranks(f"loading\n{TORCHRUN}")
    told, *rest = message("the command", 1, said, NOBODY, NOBODY).splitlines()
    assert told.startswith("the command ended with exit code 1: E1122 ")
    assert "failed (exitcode: 1) local_rank: 3" in told
    assert rest[0] == "loading"


def test_torch_s_marks_are_left_out_of_a_rank_s_own_words() -> None:
    marked = 'step 3\n[rank2]: Traceback (most recent call last):\n[rank2]:   File "t.py", line 1, in f\n[rank2]: ValueError: x\n'
    assert of_rank(marked) == 'Traceback (most recent call last):\n  File "t.py", line 1, in f\nValueError: x'
    assert of_rank("Traceback … ChildFailedError\n") == "Traceback … ChildFailedError\n"


def test_the_operator_knows_a_victim_by_the_same_marks() -> None:
    """The agent is a program of its own, which cannot import the operator's."""
    assert (words.PEER_LOST, words.PEER_LOST_CODE) == (root_cause.PEER_LOST, PEER_LOST_CODE)
