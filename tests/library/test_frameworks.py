"""Programs of other frameworks run in the environment that the agent gives to each rank, learn, and go on where the last start was."""

import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.library.support.programs import started

FOLDER = Path(__file__).parents[2] / "examples/recipes"
AGENT = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "NODE_RANK": "0",
    "TORCHELASTIC_RUN_ID": "a-job-1",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
}
"""What it sets beside what any launcher does."""


@dataclass(frozen=True, slots=True)
class Program:
    """One that is ended after some steps and started again for more."""

    name: str
    first: tuple[str, str]
    then: tuple[str, str]
    step: int
    """At which the first start ends."""
    half: str
    """What a start that was killed while it wrote a checkpoint may leave: nothing that is whole."""
    learnt: str
    least: float
    most: float


def output(name: str, *words: str) -> str:
    """What the first of two processes has printed."""
    with started(FOLDER / name, 2, *words, **AGENT, PYTHONFAULTHANDLER="1") as ranks:
        try:
            outputs = [rank.communicate(timeout=180) for rank in ranks]
        except subprocess.TimeoutExpired:
            pytest.fail("\n".join(map(aborted, ranks)))
        assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return outputs[0][0]


def aborted(rank: subprocess.Popen[str]) -> str:
    """What a process has said, and where it stands."""
    if rank.poll() is None:
        rank.send_signal(signal.SIGABRT)
    return rank.communicate(timeout=60)[1]


@pytest.mark.parametrize(
    "program",
    [
        Program(
            "accelerate_train.py",
            ("--steps", "25"),
            ("--steps", "75"),
            25,
            "step-00000099.partial/model.safetensors",
            r"([\d.]+)% of signals",
            60,
            100,
        ),
        Program(
            "transformers_train.py",
            ("--steps", "20"),
            ("--steps", "40"),
            20,
            "checkpoint-99/model.safetensors",
            r"a loss of ([\d.]+)",
            0,
            0.8,
        ),
        Program(
            "lightning_train.py",
            ("--epochs", "1"),
            ("--epochs", "2"),
            25,
            "step=000050.ckpt",
            r"([\d.]+)% of points",
            90,
            100,
        ),
    ],
    ids=lambda program: program.name,
)
def test_program_learns_and_resumes_from_newest_usable_checkpoint(tmp_path: Path, program: Program) -> None:
    kept = ("--checkpoints", str(tmp_path))
    assert "goes on" not in output(program.name, *kept, *program.first)
    half = tmp_path / program.half
    half.parent.mkdir(exist_ok=True)
    half.write_bytes(b"half of")
    text = output(program.name, *kept, *program.then)
    assert re.findall(r"resuming from step (\d+)", text) == [str(program.step)]
    assert program.least < float(re.findall(program.learnt, text)[-1]) < program.most
