"""Who leaves the loop before its last step has what it had saved, and the best of it stays."""

from pathlib import Path

import pytest

from tests.library.support.programs import started

PROGRAM = """
import sys, torch
from torch import nn
from trainyard_torch import (
    Batches, CheckpointPolicy, Checkpoints, Loader, Loop, Retention, SampleOrder, SaveInterval, replicate, start,
)
folder, how = sys.argv[1:]
with start(seed=1) as training:
    model = replicate(nn.Linear(4, 1), training.mesh)
    samples = [torch.full((4,), float(number)) for number in range(40)]
    data = Loader(samples, Batches(SampleOrder(40), 4, 4), training.data_shard, num_workers=0)
    plan = CheckpointPolicy(store=SaveInterval(steps=3), keep=Retention(last=1, best=1, metric="score"))
    loop = Loop(
        training, model, torch.optim.SGD(model.parameters(), lr=1e-4), data, total_steps=12,
        checkpoints=Checkpoints(folder, policy=plan, mesh=training.mesh),
        checkpoint_metrics=lambda: {"score": abs(6 - step.number)},
    )
    for step in loop:
        for batch in step:
            step.backward(model(batch).square().mean())
        if step.number == 4 and how == "break": break
        if step.number == 4 and how == "exit": sys.exit()
print("ended", flush=True)
"""


def kept(folder: Path) -> list[int]:
    return sorted(int(each.name.split("-")[1]) for each in folder.glob("step-*") if (each / "MANIFEST.json").exists())


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("how", ["break", "exit"])
def test_the_checkpoint_that_is_under_way_is_finished(tmp_path: Path, how: str, world_size: int) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with started(tmp_path / "program.py", world_size, str(tmp_path / "checkpoints"), how) as ranks:
        outputs = [each.communicate(timeout=90) for each in ranks]
        assert [each.returncode for each in ranks] == [0] * world_size, outputs
    assert kept(tmp_path / "checkpoints") == [3]


def test_best_by_own_metrics_is_kept(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with started(tmp_path / "program.py", 1, str(tmp_path / "checkpoints"), "") as ranks:
        outputs = [each.communicate(timeout=90) for each in ranks]
        assert [each.returncode for each in ranks] == [0], outputs
    assert kept(tmp_path / "checkpoints") == [6, 12]
