"""`python -m dev.benchmarks.training.start_up`: measure what many ranks create until they can train: process groups, sockets, time.

All ranks run on this machine, over gloo. A training with checkpoints and tracking starts in two ways, in turns. `start()` is the library as it is.
In `group each`, torch creates the groups of all dimensions of the mesh, and each user of the control group has one of its own. The library was
like that before. The program prints a line of JSON for each turn.
"""

import argparse
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dev.benchmarks.options import turns
from dev.benchmarks.training.ranks import free_port
from trainyard_torch import Parallelism, start
from trainyard_torch.checkpoint.communicator import Communicator

OURS: Final = "start()"
EACH: Final = "group each"
NODE: Final = 8
"""The ranks that share one copy of the parameters under HSDP, as on a node with eight GPUs."""
LAYOUTS: Final = ("fsdp", "hsdp")
PATIENCE_SECONDS: Final = 600.0
TRIES: Final = 3


class RankFigures(NamedTuple):
    """What one rank reports.

    Attributes:
        seconds: from the first call until all groups exist.
        cpu: its processor time in these seconds, all threads.
        calls: calls of `new_group`.
        groups: groups that this rank is in.
        sockets: open sockets.
    """

    seconds: float
    cpu: float
    calls: int
    groups: int
    sockets: int


def start_training(way: str, sizes: Parallelism) -> None:
    """Start a training, and create what its checkpoints and its tracking need. It ends with the process."""
    if way == EACH:
        patch("trainyard_torch.mesh_groups.mesh_of", _mesh_of_torch).start()
        for user in ("context", "checkpoint.communicator"):
            patch(f"trainyard_torch.{user}.control_group", _group_of_the_caller).start()
    start(parallelism=sizes).__enter__()
    # Those of `Checkpoints` and `Tracking`.
    for threaded in (False, True, False):
        Communicator(threaded=threaded)


def _mesh_of_torch(device_type: str, shape: Sequence[int], names: tuple[str, ...]) -> DeviceMesh:
    return init_device_mesh(device_type, tuple(shape), mesh_dim_names=names)


def _group_of_the_caller(timeout: timedelta | None = None) -> dist.ProcessGroup:
    return dist.new_group(backend="gloo", timeout=timeout)


def parallelism(layout: str, ranks: int) -> Parallelism:
    """Return the sizes of a layout: parameters sharded over all ranks, or over the ranks of a node."""
    return Parallelism(replicate=ranks // min(NODE, ranks // 2)) if layout == "hsdp" else Parallelism()


def measure(way: str, layout: str, ranks: int) -> dict[str, Any]:
    """Start all ranks once, and return the figures of the turn: the slowest rank's seconds, and counts of the last rank.

    Raises:
        EOFError: a rank has exited, in each of several tries.
        TimeoutError: a rank did not answer.
    """
    # Another process may take the port before rank 0 does, and on a busy machine gloo sometimes fails to connect all ranks.
    for _ in range(TRIES - 1):
        with suppress(EOFError):
            return _measure_once(way, layout, ranks)
    return _measure_once(way, layout, ranks)


def _measure_once(way: str, layout: str, ranks: int) -> dict[str, Any]:
    # They share the memory of torch. Nothing here has started a thread.
    forks = multiprocessing.get_context("fork")
    port, processes, pipes = free_port(), [], []
    try:
        for rank in range(ranks):
            here, there = forks.Pipe(duplex=False)
            process = forks.Process(target=_rank, args=(way, layout, rank, ranks, port, there), daemon=True)
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        found = [_answer(pipe) for pipe in pipes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
    first, last = found[0], found[-1]
    return {
        "start": way,
        "layout": layout,
        "ranks": ranks,
        "seconds": round(max(each.seconds for each in found), 2),
        "new_group": last.calls,
        "groups": last.groups,
        "sockets": last.sockets,
        "cpu_rank0_ms": round(1000 * first.cpu),
        "cpu_rank_ms": round(1000 * sum(each.cpu for each in found[1:]) / (ranks - 1)),
    }


def _answer(pipe: Connection) -> RankFigures:
    if not pipe.poll(PATIENCE_SECONDS):
        raise TimeoutError(f"a rank has not started within {PATIENCE_SECONDS:.0f} s")
    return RankFigures(*pipe.recv())


def _rank(way: str, layout: str, rank: int, ranks: int, port: int, out: Connection) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    torch.set_num_threads(1)
    calls = 0
    create = distributed_c10d._new_group_with_tag  # noqa: SLF001 - all public functions end there

    def counted(*words: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        return create(*words, **more)

    distributed_c10d._new_group_with_tag = counted  # noqa: SLF001 - as above
    sockets, began, worked = len(list(_sockets())), time.perf_counter(), time.process_time()
    start_training(way, parallelism(layout, ranks))
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    groups = len(distributed_c10d._world.pg_map)  # noqa: SLF001 - torch has no public list
    out.send(RankFigures(seconds, cpu, calls, groups, len(list(_sockets())) - sockets))
    # Others still connect to this rank. The parent process ends it.
    time.sleep(PATIENCE_SECONDS)


def _sockets() -> Iterator[int]:
    """Yield the descriptors of the open TCP sockets."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        if os.path.lexists(entry) and entry.readlink().name.startswith("socket:"):
            with socket.socket(fileno=os.dup(int(entry.name))) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    yield int(entry.name)


def main() -> int:
    """Print the figures of all turns, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.training.start_up", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for ranks in options.ranks:
        for layout in LAYOUTS:
            for repeat in range(options.repeats):
                for way in turns([EACH, OURS], repeat):
                    sys.stdout.write(json.dumps(measure(way, layout, ranks)) + "\n")
                    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
