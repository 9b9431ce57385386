"""`python -m dev.benchmarks.gpu.checkpoints`: how long a save stops a training on a GPU, beside torch's own ways."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from dev.benchmarks.gpu.model import VOCABULARY, Gpt, emit, loss_of, size
from dev.benchmarks.options import turns
from trainyard_torch import CheckpointPolicy, Checkpoints, SaveInterval, Tier, Training, TrainState, replicate, start

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WIDTH, LAYERS = 1024, 16
TURNS, IDLE_STEPS = 2, 60
GB = 1e9


class Measured:
    """A training of a quarter of a billion parameters, which is saved in several ways."""

    def __init__(self, training: Training, folder: Path, memory: Path) -> None:
        self._folder = folder
        plain = Gpt(WIDTH, LAYERS).to(training.device)
        self.bytes = 12 * size(plain)
        self._model = replicate(plain, training.mesh)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), fused=True)
        self._tokens = torch.randint(VOCABULARY, (4, 513), device=training.device)
        self._state: Mapping[str, Any] = {"train_state": TrainState(self._model, self._optimizer)}
        self._number = 0
        self._memory = memory
        self._mesh = training.mesh
        self._ours = {process: self._made(process=process) for process in (False, True)}
        for each in self._ours.values():
            each.load(self._state)
        self._stager = BlockingAsyncStager(cache_staged_state_dict=True)
        self._group = dist.new_group(backend="gloo")
        for _ in range(10):
            self._step()

    def run(self) -> None:
        """Save in turns, and load."""
        idle = [self._step() for _ in range(IDLE_STEPS)]
        emit("idle", system="no save", p50_ms=1e3 * median(idle), max_ms=1e3 * max(idle), state_gb=self.bytes / GB)
        ways: dict[str, Callable[[], Callable[[], bool]]] = {
            "trainyard, memory and disk": self._by_us,
            "trainyard, memory": lambda: self._by_us(Tier.MEMORY),
            "trainyard, memory and disk, by a process": lambda: self._by_us(process=True),
            "DCP's async save": lambda: self._by_dcp(None),
            "DCP's async save, pinned": lambda: self._by_dcp(self._stager),
            "torch.save": self._by_torch,
        }
        found: dict[str, list[tuple[float, float, list[float]]]] = {name: [] for name in ways}
        # The first turn allocates memory, pins it and starts threads: it does not count.
        for turn in range(1 + TURNS):
            for name in turns([*ways], turn):
                self._number += 1
                torch.cuda.synchronize()
                began = time.perf_counter()
                done = ways[name]()
                stall = time.perf_counter() - began
                steps = []
                while not done():
                    steps.append(self._step())
                took = time.perf_counter() - began
                found[name].append((stall, took, steps))
                emit("save turn", system=name, turn=turn, stall_s=stall, done_s=took, steps=len(steps))
        for name, each in found.items():
            first, counted = each[0], each[1:]
            steps = sorted(step for turn in counted for step in turn[2])
            emit(
                "save",
                system=name,
                stall_s=median(turn[0] for turn in counted),
                first_stall_s=first[0],
                done_s=median(turn[1] for turn in counted),
                gb_per_s=self.bytes / GB / median(turn[1] for turn in counted),
                p50_ms=1e3 * median(steps) if steps else 0.0,
                p99_ms=1e3 * steps[int(0.99 * len(steps))] if steps else 0.0,
            )
        self._load()

    def _load(self) -> None:
        self._number += 1
        self._ours[False].save(self._number, self._state, wait=True)
        for each in self._ours.values():
            each.close()
        loads: dict[str, Callable[[], object]] = {
            "trainyard, memory": lambda: self._made().load(self._state),
            "trainyard, disk": lambda: Checkpoints(str(self._folder / "by-thread"), mesh=self._mesh).load(self._state),
            "DCP": lambda: dcp.load(dict(self._state), checkpoint_id=str(self._folder / "dcp")),
            "torch.load": lambda: torch.load(self._folder / "plain.pt", map_location="cuda", weights_only=True),
        }
        for name, load in loads.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            load()
            torch.cuda.synchronize()
            took = time.perf_counter() - began
            emit("load", system=name, seconds=took, gb_per_s=self.bytes / GB / took)

    def _made(self, *, process: bool = False) -> Checkpoints:
        # A folder each: neither is to delete the other's checkpoints.
        name = "by-process" if process else "by-thread"
        policy = CheckpointPolicy(process=process, memory=SaveInterval(), memory_dir=str(self._memory / name))
        return Checkpoints(str(self._folder / name), policy=policy, mesh=self._mesh)

    def _step(self) -> float:
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(self._model, self._tokens)
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def _by_us(self, tier: Tier = Tier.STORE, *, process: bool = False) -> Callable[[], bool]:
        ours = self._ours[process]
        ours.save(self._number, self._state, tier=tier)
        waiting = threading.Thread(target=ours.wait)
        waiting.start()
        return lambda: not waiting.is_alive()

    def _by_dcp(self, stager: Any) -> Callable[[], bool]:
        state = {name: each.state_dict() for name, each in self._state.items()}
        future: Any = dcp.async_save(
            state, checkpoint_id=str(self._folder / "dcp"), process_group=self._group, async_stager=stager
        )
        return lambda: bool(future.done())

    def _by_torch(self) -> Callable[[], bool]:
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save(state, self._folder / "plain.part")
        (self._folder / "plain.part").replace(self._folder / "plain.pt")
        return lambda: True


def main() -> int:
    """Run the command."""
    folder = Path(tempfile.mkdtemp(prefix="trainyard-bench-", dir=os.environ.get("FOLDER", "/var/tmp")))  # noqa: S108 - a folder of our own in it
    memory = Path(tempfile.mkdtemp(prefix="trainyard-bench-", dir="/dev/shm"))
    try:
        with start(seed=1) as training:
            Measured(training, folder, memory).run()
    finally:
        for each in (folder, memory):
            shutil.rmtree(each, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
