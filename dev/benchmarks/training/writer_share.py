"""`python -m dev.benchmarks.training.writer_share`: measure what a writer takes from a training loop, as a thread or as a process.

The loop makes small steps, which need Python's lock all the time: a GPU's training is one while it queues kernels. The writer stores
the same state again and again. Turns without a writer, with a thread and with a process alternate, and each prints a line of JSON.
With a core to spare, what a thread takes beyond a process is what it takes by Python's lock.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed.checkpoint as dcp

from dev.benchmarks.options import turns
from trainyard_torch import Store
from trainyard_torch.checkpoint.streams import without_crc32, writer

NOTHING: Final = "no writer"
THREAD: Final = "thread"
PROCESS: Final = "process"
TENSOR: Final = 2**20
"""Elements of one tensor of the state: 4 MB."""


def write(state: dict[str, torch.Tensor], folder: str, stop: Any, written: Any) -> None:
    """Write checkpoints until `stop` is set, and count them."""
    store, number = Store(folder, timeout_seconds=300), 0
    while not stop.is_set():
        out, _ = writer(store, str(number), lambda: None)
        with without_crc32():
            dcp.save(state, storage_writer=out)
        store.remove(str(number))
        number += 1
        written.value = number


@contextmanager
def beside(how: str, state: dict[str, torch.Tensor], folder: str, written: Any) -> Iterator[None]:
    """Run the writer as a thread, as a process that inherits nothing, or not at all."""
    if how == NOTHING:
        yield
        return
    context = multiprocessing.get_context("spawn")
    stop: Any = threading.Event() if how == THREAD else context.Event()
    make: Callable[..., Any] = threading.Thread if how == THREAD else context.Process
    running = make(target=write, args=(state, folder, stop, written), daemon=True)
    running.start()
    try:
        # Not before the first checkpoint is there: a process imports torch.
        while not written.value and running.is_alive():
            time.sleep(0.01)
        yield
    finally:
        stop.set()
        running.join()


def steps(seconds: float) -> float:
    """Return the small steps per second."""
    weights, done = torch.ones(8), 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(100):
            weights = weights * 1.0
        done += 1
    return done / seconds


def main() -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.training.writer_share", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--tensors", type=int, default=25, help="of 4 MB")
    parser.add_argument("--folder", default="/var/tmp", help="one of our own is made in it")  # noqa: S108
    options = parser.parse_args()
    torch.set_num_threads(1)
    state = {f"w{number}": torch.ones(TENSOR).share_memory_() for number in range(options.tensors)}
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir=options.folder) as folder:
        for turn in range(options.repeats):
            for how in turns([NOTHING, THREAD, PROCESS], turn):
                written = multiprocessing.get_context("spawn").Value("q", 0)
                with beside(how, state, str(Path(folder) / how), written):
                    before, began = written.value, time.perf_counter()
                    rate = steps(options.seconds)
                    stored = (written.value - before) / (time.perf_counter() - began)
                figures = {"how": how, "turn": turn, "steps_per_second": rate, "checkpoints_per_second": stored}
                print(json.dumps({"share": figures}), flush=True)  # noqa: T201 - the figures
    return 0


if __name__ == "__main__":
    sys.exit(main())
