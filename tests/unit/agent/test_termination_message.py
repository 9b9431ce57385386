"""The termination message that the agent writes, by the golden examples that the operator's tests read."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.agent_process import displayed
from trainyard_agent.exit_cause import KEPT, Tail, hardware_error, is_peer_loss, strip_launcher, strip_rank_marks
from trainyard_agent.memory import Memory
from trainyard_agent.termination_message import (
    LINE_BYTES,
    MESSAGE_BYTES,
    Kind,
    Termination,
    failure,
    is_plain,
    line,
    summary,
    write,
)
from trainyard_agent.tracebacks import BEGIN

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/termination_messages.json").read_text(encoding="utf-8"))


def data_of(example: dict[str, Any]) -> Termination:
    return Termination(**{**example["data"], "kind": Kind(example["data"]["kind"])})


@pytest.mark.parametrize("example", GOLDEN["written"], ids=lambda example: example["name"])
def test_golden_message_is_written(example: dict[str, Any]) -> None:
    assert write(data_of(example), example["text"]) == example["message"]


def message(rank: int | None, code: int, output: str, before: Memory, after: Memory, **more: Any) -> str:
    """Return the displayed message of a rank that exited this way."""
    return displayed(write(*failure(rank, code, output, before, after, **more)))


UNKNOWN = Memory(None, None, None)
ONE = f'{BEGIN}\n  File "a.py", line 1, in <module>\n    f()\nValueError: one'


def test_exception_is_in_the_headline() -> None:
    assert message(3, 1, f"step 7\n{ONE}\n", UNKNOWN, UNKNOWN) == f"rank 3 exited with code 1: ValueError: one\n{ONE}"


def test_last_line_without_a_traceback() -> None:
    assert message(0, 139, "loading\n", UNKNOWN, UNKNOWN) == "rank 0 was killed by SIGSEGV\nloading"
    assert message(0, 135, "loading\n", UNKNOWN, UNKNOWN).startswith(
        "rank 0 was killed by SIGBUS: mapped memory is not"
    )
    assert message(0, 1, "", UNKNOWN, UNKNOWN) == "rank 0 exited with code 1"
    text = "rank 0 exited with code 3: cannot find the data\nloading\ncannot find the data"
    assert message(0, 3, "loading\ncannot find the data\n\n", UNKNOWN, UNKNOWN) == text


LOGGED = f"trying again\n{ONE}\n"
ABORTED = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [Rank 1] NCCL watchdog thread terminated with exception: CUDA error\nframe #0: c10::Error::Error\n"
)
PEER = f'{BEGIN}\n  File "t.py", line 1, in f\nRuntimeError: [gloo] Connection closed by peer [127.0.0.1]:7\n'
NCCL = f'{BEGIN}\n  File "t.py", line 1, in f\n    all_reduce(x)\ntorch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, {{}}, NCCL version 2.21.5\n{{}}\n'
XGBOOST = (
    f'{BEGIN}\n  File "t.py", line 1, in f\nxgboost._c_api.XGBoostError: [05:18:48] /src/collective/result.cc:83: [histogram.h:195|05:18:48]:\n\n'
    "- [allreduce.cc:101|05:18:48]: {}.\n- [socket.h:348|05:18:48]: Socket error. {}\nStack trace:\n  [bt] (0) lib.so\n"
)
CUDA_IN_SOURCE = (
    f'{BEGIN}\n  File "t.py", line 1, in f\n    log("CUDA error")\nDistBackendError: Connection reset by peer\n\n'
    + "frame\n" * 30
)
WATCHDOG = (
    "[rank3]:[E817 17:40:34.227 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 3] Process group watchdog thread terminated with "
    "exception: CUDA error: uncorrectable ECC error encountered\n"
)
AT_EXIT = f'Exception ignored in: <_io.TextIOWrapper>\n{BEGIN}\n  File "t.py", line 1, in g\nBrokenPipeError: [Errno 32] Broken pipe\n'


@pytest.mark.parametrize(
    ("code", "output", "first"),
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
        (1, f"{ONE}\n{AT_EXIT}", "rank 0 exited with code 1: ValueError: one"),
        (255, LOGGED, "rank 0 exited with code 255: ValueError: one"),
    ],
)
def test_exception_before_a_signal_counts_at_the_end(code: int, output: str, first: str) -> None:
    text = message(0, code, output, UNKNOWN, UNKNOWN)
    assert text.splitlines()[0] == first
    assert output.strip()[-20:] in text or code in {1, 139}


PADDLE_ABORTED = """\
terminate called after throwing an instance of 'gloo::IoException'
  what():  [/paddle/third_party/gloo/gloo/transport/tcp/pair.cc:576] Read error [127.0.0.1]:9608: {}


--------------------------------------
C++ Traceback (most recent call last):
--------------------------------------
0   paddle::pybind::ThrowExceptionToPython(std::__exception_ptr::exception_ptr)

----------------------
Error Message Summary:
----------------------
FatalError: `Process abort signal` is detected by the operating system.
  [SignalInfo: *** SIGABRT (@0x6) received by PID 6 (TID 0x7fc277f4a780) from PID 6 ***]
"""
JAX_ABORTED = """\
E1126 06:00:00.000000 7 coordination_service_agent.cc:446] Polled an error: UNAVAILABLE: the task 1 has died
F1126 06:00:00.000001 7 client.h:86] Terminating process because the JAX distributed service detected fatal errors. \
This most likely indicates that another task died; see the other task logs for more details.
*** Check failure stack trace: ***
    @     0x7f0000000000  absl::LogMessageFatal
"""


@pytest.mark.parametrize(
    ("code", "output", "victim"),
    [
        (1, PEER, True),
        (1, f"{PEER}{AT_EXIT}", True),
        (1, f"{ONE}\n{AT_EXIT}", False),
        (1, f"{PEER}\ngoing on\n{ONE}\n", False),
        (134, ABORTED, False),
        (134, ABORTED.replace("CUDA error", "[Rank 1] Watchdog caught collective operation timeout"), True),
        (1, NCCL.format("remote process exited or there was a network error", "ncclRemoteError: A call failed"), True),
        (1, NCCL.format("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed."), False),
        (1, NCCL.format("internal error", "Last error:\nCuda failure 999 'unknown error'"), False),
        (1, NCCL.format("unhandled system error", "ncclSystemError: System call (e.g. socket, malloc) failed"), False),
        (1, WATCHDOG + NCCL.format("NCCL communicator was aborted", ""), False),
        (1, CUDA_IN_SOURCE, True),
        (1, XGBOOST.format("Encountered EOF. The other end is likely closed", "Broken pipe"), True),
        (1, XGBOOST.format("Failed to connect to the tracker", "Connection refused"), True),
        (1, XGBOOST.format("Ring Allreduce failed", "Connection reset by peer"), True),
        (1, XGBOOST.format("label and prediction size not match", ""), False),
        (134, JAX_ABORTED, True),
        (134, PADDLE_ABORTED.format("Connection reset by peer"), True),
        (1, PADDLE_ABORTED.format("Connection reset by peer"), False),
        (134, PADDLE_ABORTED.format("Bad file descriptor"), False),
        (1, JAX_ABORTED, False),
        (134, "F1126 06:00:00 7 pjrt.cc:1] Check failed: device is gone\nAborted\n", False),
        (137, PEER, True),
        (137, f"{PEER}trying again\n", False),
        (92, "", True),
        (1, "RendezvousConnectionError: gone", True),
    ],
)
def test_peer_loss_is_known_by_the_last_words(code: int, output: str, *, victim: bool) -> None:
    assert is_peer_loss(code, output) is victim


def test_oom_kill_is_shown_with_memory_use() -> None:
    before, after = Memory(2, None, None), Memory(3, 1 << 29, 1 << 29)
    assert message(1, 137, "", before, after) == (
        "rank 1 was killed by SIGKILL: out of memory: the kernel killed 1 of its processes"
        ", peak use 512 MiB, limit 512 MiB"
    )
    assert "out of memory" not in message(1, 137, "", after, after)
    assert "out of memory" not in message(1, 137, "", before, UNKNOWN)


def test_old_oom_kill_is_not_the_cause() -> None:
    before, after = Memory(2, None, None), Memory(4, None, None)
    text = message(1, 1, ONE, before, after, oom_age=300.0).splitlines()[0]
    assert text == (
        "rank 1 exited with code 1: ValueError: one"
        " (300 seconds before, out of memory, the kernel killed 2 of its processes)"
    )
    assert "out of memory: the kernel" in message(1, 1, ONE, before, after, oom_age=3.0)


@pytest.mark.parametrize("letter", ["x", "ü", "\ud800", "\x00", '"', "\\"])
def test_message_fits_into_the_kubelets_limit(letter: str) -> None:
    output = f"{ONE}{letter * 10_000}\n{letter * 10_000}\n{ONE}{letter * 10_000}"
    made = write(*failure(0, 1, output, UNKNOWN, UNKNOWN))
    assert len(made.encode()) <= MESSAGE_BYTES
    assert len(made.partition("\n")[0].encode()) <= LINE_BYTES
    assert displayed(made).startswith("rank 0 exited with code 1: ValueError: one")


def test_line_fits_with_all_fields() -> None:
    data = Termination(
        Kind.HUNG,
        999_999_999,
        255,
        64,
        2**53,
        '"' * 9000,
        '"' * 9000,
        peer_lost=True,
        hardware_error="CUDA error: unspecified launch failure",
        oom_kills=2**53,
        oom_age_seconds=2**53,
        memory_peak_bytes=2**53,
        memory_limit_bytes=2**53,
        phase="checkpoint",
        stalled_seconds=2**53,
        usual_step_seconds=1e15 / 3,
        blocked="uninterruptible",
        outlier=True,
    )
    assert len(line(data).encode()) <= LINE_BYTES
    assert "9007199254740992" in line(data)


def test_log_line_gives_the_facts() -> None:
    data, _ = failure(3, 1, ONE, UNKNOWN, UNKNOWN, 7)
    expected = (
        'kind=failed rank=3 exitCode=1 step=7 exception="ValueError: one" location="a.py:1 in <module>" cause=program'
    )
    assert summary(data) == expected


@pytest.mark.parametrize(
    ("rank", "code", "output", "plain"),
    [
        (None, 3, "", True),
        (None, 137, "", False),
        (None, 3, "no data", False),
        (None, 92, "", False),
        (0, 3, "", False),
    ],
)
def test_plain_message_is_not_worth_writing(rank: int | None, code: int, output: str, *, plain: bool) -> None:
    assert is_plain(*failure(rank, code, output, UNKNOWN, UNKNOWN)) is plain


def test_hardware_error_is_found() -> None:
    assert hardware_error("RuntimeError: CUDA error: uncorrectable ECC error encountered") == "uncorrectable ECC"
    assert hardware_error("RuntimeError: CUDA error: device-side assert triggered") == ""
    assert failure(0, 1, "CUDA error: unknown error", UNKNOWN, UNKNOWN)[0].hardware_error == "CUDA error: unknown error"


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        ("uncorrectable NVLink error detected during the execution", "uncorrectable NVLink"),
        ("RuntimeError: CUDA error: system not yet initialized", "system not yet initialized"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "busy or unavailable"),
        ("Failed to initialize NVML: Driver/library version mismatch", "Driver/library version mismatch"),
        ("node1:7:9 [0] NCCL WARN Cuda failure 999 'unknown error'", "Cuda failure 999"),
        # The survivors of a killed rank print it, too.
        ("NET/IB : Got completion from peer 10.0.0.1<38138> with error 12, opcode 0, len 0, vendor err 129", ""),
    ],
)
def test_broken_devices_and_drivers_are_hardware(text: str, mark: str) -> None:
    assert hardware_error(text) == mark


def test_fault_that_only_the_watchdog_saw() -> None:
    output = WATCHDOG + NCCL.format("NCCL communicator was aborted", "")
    data, _ = failure(3, 1, output, UNKNOWN, UNKNOWN)
    assert (data.peer_lost, data.hardware_error) == (False, "uncorrectable ECC")


def test_warnings_of_nccl_are_in_the_message() -> None:
    """`NCCL WARN*ibv_modify_qp failed` is a rule of the documentation."""
    lines = [
        f"node1:71:{number} [0] misc/ibvwrap.cc:190 NCCL WARN Call {number} to ibv_modify_qp failed\n"
        for number in range(9)
    ]
    output = (
        "".join(lines) + "step 7\n" + NCCL.format("unhandled system error", "x" * 900).replace("all_reduce", "y" * 9000)
    )
    made = write(*failure(0, 1, output, UNKNOWN, UNKNOWN))
    assert [line for line in made.splitlines() if "NCCL WARN" in line] == [line.strip() for line in lines[-3:]]
    without = write(*failure(0, 1, "".join(lines), UNKNOWN, UNKNOWN))
    assert without.count("NCCL WARN") == 9, "without a traceback, the output itself"


def test_tail_keeps_the_end_of_a_stream() -> None:
    tail = Tail()
    for number in range(100_000):
        tail.feed(b"%d\n" % number)
    assert tail.text.endswith("99998\n99999\n")
    assert len(tail.text) == KEPT
    tail.feed(b"\xff\xfe")
    assert tail.text.endswith("��")


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
    "output",
    [
        pytest.param(f"step 7\n{RANK_3}{RANK_1}{TORCHRUN}", id="several ranks"),
        pytest.param(f"{ONE}\n{TORCHRUN}", id="no process group"),
        pytest.param(f"{ONE}\n{TORCHRUN}{ACCELERATE}", id="accelerate with torchrun"),
        pytest.param(f"step 7\n{ONE}", id="no launcher"),
    ],
)
def test_ranks_output_counts_below_a_launcher(output: str) -> None:
    text = message(None, 1, strip_launcher(output), UNKNOWN, UNKNOWN)
    assert text == f"the command exited with code 1: ValueError: one\n{ONE}"


def test_launcher_alone_is_shown_by_its_lines() -> None:
    output = strip_launcher(f"loading\n{TORCHRUN}")
    text, *rest = message(None, 1, output, UNKNOWN, UNKNOWN).splitlines()
    assert text.startswith("the command exited with code 1: E1122 ")
    assert "failed (exitcode: 1) local_rank: 3" in text
    assert rest[0] == "loading"


def test_torch_marks_are_stripped() -> None:
    marked = 'step 3\n[rank2]: Traceback (most recent call last):\n[rank2]:   File "t.py", line 1, in f\n[rank2]: ValueError: x\n'
    assert strip_rank_marks(marked) == 'Traceback (most recent call last):\n  File "t.py", line 1, in f\nValueError: x'
    assert strip_rank_marks("Traceback … ChildFailedError\n") == "Traceback … ChildFailedError\n"
