"""How many programs of a worker have loaded torch, where one command runs for several ranks."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.fake_operator import FakeOperator, credentials
from tests.unit.agent.fake_torch import fake_torch
from tests.unit.agent.rank_scripts import WARM_START_OFF

PYTHON = sys.executable
TRAIN = "import torch.distributed, time; time.sleep(0.3)"
LOADER = """
import multiprocessing as mp
def load(): import torch.distributed
if __name__ == "__main__":
    import torch.distributed
    workers = [mp.get_context(each).Process(target=load) for each in ("fork", "spawn")]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
"""
LAUNCHER = """
import os, subprocess, sys
import torch.distributed
ranks = [subprocess.Popen([sys.executable, "train.py"], env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
for rank in ranks: rank.wait()
"""
GROUP = "import torch.distributed as dist; dist.init_process_group('gloo', rank=0, world_size=1)"


def last_report(
    program: Path, folder: Path, operator: FakeOperator, script: str, processes: str = "2", **files: str
) -> Any:
    """Return the last report of a worker that runs this script of the shell; None where it reports nothing."""
    fake_torch(folder)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    variables = {
        "TRAINYARD_REPLICA_INDEX": "0",
        "TRAINYARD_REPLICAS": "1",
        "TRAINYARD_PROCESSES_PER_REPLICA": processes,
        "PYTHONPATH": str(folder),
        **WARM_START_OFF,
        **credentials(folder, operator.port),
    }
    run = AgentProcess(program, folder, "--once", "--", "sh", "-c", script, **variables)
    assert run.wait()[0] == 0
    return operator.reports[-1] if operator.reports else None


@pytest.mark.parametrize(
    ("script", "train", "expected"),
    [
        pytest.param(f"true; {PYTHON} train.py", TRAIN, 1, id="one program"),
        pytest.param(f"{PYTHON} train.py; true", LOADER, 1, id="its loaders are none"),
        pytest.param(f"{PYTHON} tool.py; {PYTHON} train.py; true", TRAIN, 1, id="a tool without torch is none"),
        pytest.param(f"{PYTHON} launch.py; true", TRAIN, 2, id="a launcher is none"),
        pytest.param(f"RANK=0 {PYTHON} train.py & RANK=1 {PYTHON} train.py; wait", TRAIN, 2, id="a shell starts two"),
    ],
)
def test_programs_with_torch_are_counted(
    program: Path, folder: Path, operator: FakeOperator, script: str, train: str, expected: int
) -> None:
    found = last_report(program, folder, operator, script, train=train, tool="print()", launch=LAUNCHER)
    assert found == {"attempt": 1, "ranks": {}, "torch_processes": expected}


@pytest.mark.parametrize(
    ("script", "processes"),
    [
        pytest.param(f"{PYTHON} tool.py; true", "2", id="no torch"),
        pytest.param(f"{PYTHON} train.py; true", "1", id="one process is expected"),
        pytest.param(f"{PYTHON} train.py; {PYTHON} -I slow.py; true", "2", id="a program that records nothing"),
    ],
)
def test_nothing_uncertain_is_reported(
    program: Path, folder: Path, operator: FakeOperator, script: str, processes: str
) -> None:
    slow = "import time; time.sleep(2.5)"
    assert last_report(program, folder, operator, script, processes, train=TRAIN, tool="print()", slow=slow) is None


def test_formed_group_is_reported_beside_it(program: Path, folder: Path, operator: FakeOperator) -> None:
    found = last_report(program, folder, operator, f"{PYTHON} train.py; true", train=GROUP)
    assert found == {"attempt": 1, "ranks": {}, "groups": {"size": 1, "leaders": 1}, "torch_processes": 1}
