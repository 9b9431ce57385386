"""What helps each rank, where the user has not set it."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import running_agent
from trainyard_agent.rank_defaults import MANY_RANKS, keeps_standard_error, rank_defaults

WARN = {"NCCL_DEBUG": "WARN"}
TRAIN = ["python3", "train.py"]


@pytest.mark.parametrize(
    ("words", "keeps"),
    [
        (TRAIN, True),
        (["/usr/bin/python3.12", "-m", "train"], True),
        (["env", "A=1", "timeout", "9", "python", "train.py"], True),
        (["sh", "-c", "cd /work; exec python train.py --lr 1"], True),
        (["sh", "-c", "python train.py 2>&1 | tee log"], False),
        (["bash", "-c", "python train.py &> log"], False),
        (["bash", "-c", "python train.py |& tee log"], False),
        # What a script or another program does is not known.
        (["sh", "run.sh"], False),
        (["torchrun", "train.py"], False),
        (["./train"], False),
    ],
)
def test_standard_error_is_kept_for_certain(words: list[str], *, keeps: bool) -> None:
    assert keeps_standard_error(words) is keeps


@pytest.mark.parametrize(
    ("environment", "starts_ranks", "file"),
    [
        (WARN, False, "/dev/stderr"),
        ({"NCCL_DEBUG": "warn"}, False, "/dev/stderr"),
        (WARN, True, None),
        ({"NCCL_DEBUG": "INFO"}, False, None),
        ({}, False, None),
        ({**WARN, "NCCL_DEBUG_FILE": "/logs/nccl.%h.%p"}, False, None),
    ],
)
def test_warnings_of_nccl_go_to_standard_error(
    environment: dict[str, str], file: str | None, *, starts_ranks: bool
) -> None:
    made = rank_defaults(TRAIN, environment, 8, starts_ranks=starts_ranks)
    assert made == ({"NCCL_DEBUG_FILE": file} if file else {})


def test_gloo_connects_lazily_in_large_groups() -> None:
    made = [rank_defaults(TRAIN, {}, size, starts_ranks=True) for size in (1, MANY_RANKS - 1, MANY_RANKS)]
    assert made == [{}, {}, {"TORCH_GLOO_LAZY_INIT": "1"}]
    assert rank_defaults(TRAIN, {"TORCH_GLOO_LAZY_INIT": "0"}, MANY_RANKS, starts_ranks=False) == {}


NCCL = """
import resource
record(f"limit{R}", str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
log = open(os.environ["NCCL_DEBUG_FILE"], "w", buffering=1)
log.write("node:7:9 [0] NCCL WARN Call to ibv_modify_qp failed with error Connection timed out\\n")
raise RuntimeError("NCCL error: unhandled system error")
"""


@pytest.fixture
def few_files() -> Iterator[int]:
    """Have a soft limit below the hard one, as some runtimes set it. Yields the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ranks_report_warnings_and_may_open_many_files(program: Path, tmp_path: Path, few_files: int) -> None:
    with running_agent(program, tmp_path, NCCL, NCCL_DEBUG="WARN") as run:
        assert run.wait()[0] == 1
        assert "NCCL WARN Call to ibv_modify_qp failed" in run.message
        # The rank that fails first may be the only one that has come so far.
        limits = {int(file.read_text()) for file in tmp_path.glob("limit*")}
        assert limits == {min(few_files, 2**20)}
