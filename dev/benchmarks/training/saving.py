"""`python -m dev.benchmarks.training.saving`: measure the cost of checkpoints and the time to load one. Run by all processes of a training.

Each method saves the same training in turns. A turn is a save and some steps after it, in which a background write must
complete. A turn without a save gives the time of the steps alone. Rank 0 prints a line of JSON for each turn.
"""

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils._pytree import tree_map
from typing_extensions import override

from dev.benchmarks.options import turns
from dev.benchmarks.training.figures import NOTHING, OURS
from trainyard_torch import CheckpointPolicy, Checkpoints, SaveInterval, Training, TrainState, replicate, start

if TYPE_CHECKING:
    from concurrent.futures import Future

BATCH: Final = 8
TORCH: Final = "torch.save by rank 0"
DCP: Final = "DCP's plain save"
DCP_ASYNC: Final = "DCP's async save"
MEMORY: Final = "trainyard from memory"
DISK: Final = "trainyard from disk"
TORCH_LOAD: Final = "torch.load by all"
DCP_LOAD: Final = "DCP's plain load"


class LastLogRecord(logging.Handler):
    """Keeps the last log message, which names the source of a loaded checkpoint."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.last = ""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


class Saving:
    """The measured training.

    Args:
        training: of this process.
        width: of the model's layers: 2048 makes 100 MB of state.
        steps: of a turn.
        disk: a folder on a disk, for all processes.
        memory: one in memory.
    """

    def __init__(self, training: Training, width: int, steps: int, disk: Path, memory: Path) -> None:
        self._training, self._steps, self._disk = training, steps, disk
        self.plain = nn.Sequential(
            *(nn.Linear(width // 2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width // 2))
        )
        self._model = replicate(self.plain, training.mesh)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._inputs = torch.randn(BATCH, width // 2)
        self._state = {"train_state": TrainState(self._model, self._optimizer)}
        self._number = 0
        self._in_memory = CheckpointPolicy(memory=SaveInterval(), memory_dir=str(memory))
        self._ours = self._made(self._in_memory)
        self._ours.load(self._state)
        self._saves: Mapping[str, Callable[[], None]] = {
            NOTHING: lambda: None,
            OURS: lambda: self._ours.save(self._number, self._state),
            TORCH: self._by_torch,
            DCP: lambda: self._by_dcp(dcp.save),
            DCP_ASYNC: self._by_dcp_async,
        }
        # Its thread must not use the group of the gradients.
        self._async_group = dist.new_group(backend="gloo")
        self._pending: Future[Any] | None = None
        self._step()

    @property
    def size(self) -> int:
        """Bytes of a checkpoint: parameters and the two moments of each."""
        parameters: int = sum(parameter.numel() * parameter.element_size() for parameter in self.plain.parameters())
        return 3 * parameters

    def saved(self, repeats: int) -> None:
        """Measure a save by each method, in turns."""
        stalls = []
        for repeat in range(repeats):
            for name in turns([*self._saves], repeat):
                self._number += 1
                dist.barrier()
                began, worked = time.perf_counter(), time.process_time()
                self._saves[name]()
                stall = self._of_all(time.perf_counter() - began, dist.ReduceOp.MAX)
                began = time.perf_counter() - stall
                for _ in range(self._steps):
                    self._step()
                if self._pending:
                    self._pending.result()
                    self._pending = None
                dist.barrier()
                seconds = time.perf_counter() - began
                if name == OURS and self._training.is_rank0:
                    self._check_written()
                cpu = self._of_all(time.process_time() - worked, dist.ReduceOp.SUM)
                figures = {"how": name, "turn": repeat, "stall": stall, "seconds": seconds, "cpu": cpu}
                self._print("saved", figures)
                if name == OURS:
                    stalls.append(stall)
        self._print("default", {"interval": SaveInterval().interval(median(stalls), 0.0, 0)})

    def restored(self, repeats: int) -> None:
        """Measure the load of the last checkpoint of each method, in turns; files are in the page cache."""
        self._ours.close()
        loads: Mapping[str, Callable[[], None]] = {
            MEMORY: lambda: self._taken_up(self._in_memory, "in memory"),
            DISK: lambda: self._taken_up(CheckpointPolicy(), str(self._disk)),
            TORCH_LOAD: self._back_by_torch,
            DCP_LOAD: lambda: self._by_dcp(dcp.load),
        }
        for repeat in range(repeats):
            for name in turns([*loads], repeat):
                dist.barrier()
                began = time.perf_counter()
                loads[name]()
                seconds = self._of_all(time.perf_counter() - began, dist.ReduceOp.MAX)
                self._print("restored", {"how": name, "turn": repeat, "seconds": seconds})

    def _made(self, plan: CheckpointPolicy) -> Checkpoints:
        return Checkpoints(str(self._disk / "ours"), policy=plan, mesh=self._training.mesh)

    def _step(self) -> None:
        self._model(self._inputs).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _check_written(self) -> None:
        """Exit if the write is not complete: it would slow down the next method."""
        latest = self._disk / "ours/LATEST"
        if not latest.exists() or not latest.read_text().startswith(f"step-{self._number:012}-"):
            raise SystemExit(f"the checkpoint was not written within {self._steps} steps: give more with --steps")

    def _by_torch(self) -> None:
        if self._training.is_rank0:
            state = {"model": self.plain.state_dict(), "optimizer": self._optimizer.state_dict()}
            torch.save(state, self._disk / "plain.part")
            (self._disk / "plain.part").replace(self._disk / "plain.pt")

    def _back_by_torch(self) -> None:
        state = torch.load(self._disk / "plain.pt", weights_only=True)
        self.plain.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def _by_dcp(self, act: Callable[..., Any]) -> None:
        # Overwrites the last checkpoint, as a program that keeps one.
        act(dict(self._state), checkpoint_id=str(self._disk / "dcp"))

    def _by_dcp_async(self) -> None:
        # torch copies tensors of a GPU, and writes those of the host as they change.
        copied = tree_map(
            lambda value: value.detach().clone() if isinstance(value, torch.Tensor) else value,
            {name: each.state_dict() for name, each in self._state.items()},
        )
        folder = str(self._disk / "async")
        self._pending = dcp.async_save(copied, checkpoint_id=folder, process_group=self._async_group)

    def _taken_up(self, plan: CheckpointPolicy, where: str) -> None:
        last_record = LastLogRecord()
        logger = logging.getLogger("trainyard_torch.checkpoint.checkpoints")
        logger.addHandler(last_record)
        try:
            again = self._made(plan)
            again.load(self._state)
            again.close()
        finally:
            logger.removeHandler(last_record)
        if self._training.is_rank0 and where not in last_record.last:
            raise SystemExit(f"expected a checkpoint from {where}, but the library logged: {last_record.last}")

    def _of_all(self, seconds: float, how: Any) -> float:
        """Reduce a value over all processes, by maximum or sum."""
        together = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(together, how)
        return float(together)

    def _print(self, kind: str, figures: Mapping[str, Any]) -> None:
        if self._training.is_rank0:
            print(json.dumps({kind: dict(figures)}), flush=True)  # noqa: T201 - read by the parent process


def main() -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.training.saving", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--folder", default="/var/tmp", help="on a disk; one of our own is made in it")  # noqa: S108
    options = parser.parse_args()
    with start(seed=1) as training:
        folders = [""] * 2
        if training.is_rank0:
            folders = [tempfile.mkdtemp(prefix="trainyard-bench-", dir=each) for each in (options.folder, "/dev/shm")]  # noqa: S108
        dist.broadcast_object_list(folders)
        disk, memory = map(Path, folders)
        try:
            saving = Saving(training, options.width, options.steps, disk, memory)
            if training.is_rank0:
                print(json.dumps({"state": {"bytes": saving.size}}), flush=True)  # noqa: T201
            saving.saved(options.repeats)
            saving.restored(options.repeats)
        finally:
            if training.is_rank0:
                for each in (disk, memory):
                    shutil.rmtree(each, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
