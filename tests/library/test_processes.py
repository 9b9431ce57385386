"""The harness: a rank that fails, dies or hangs is reported, and all of its output arrives."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.library.support.processes import RankError, run


def add(value: int) -> float:
    sent = torch.tensor([float(value + dist.get_rank())])
    dist.all_reduce(sent)
    return float(sent.item())


def fail() -> None:
    if dist.get_rank() == 1:
        raise ValueError("it is enough")
    time.sleep(60)


def die() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def test_all_words_arrive(tmp_path: Path) -> None:
    assert run(3, tmp_path, add, 1) == [6.0, 6.0, 6.0]
    assert run(1, tmp_path, add, 1) == [1.0]


def test_a_rank_that_raises_ends_all(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"rank 1:(.|\n)*it is enough"):
        run(2, tmp_path, fail)


def test_a_rank_that_dies_ends_all(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="rank 1 has ended without a word"):
        run(2, tmp_path, die)


def test_a_rank_that_hangs_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"ranks \[0, 1\] have not ended"):
        run(2, tmp_path, time.sleep, 60, patience=3)
