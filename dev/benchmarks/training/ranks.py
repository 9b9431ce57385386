"""`python -m dev.benchmarks.training.ranks`: start the processes of a training on one machine, as torchrun would, and wait for them.

Standard library only. The first process inherits stdout; the others write to stderr. The first failure stops all
processes; its exit code is that of this command.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

LOOK_SECONDS = 0.05
STDERR = 2
ALIKE = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""Environment of all processes. Freed memory stays with the process. Whether it returns to the kernel depends on the heap layout, and
allocating it again in each step would double the time of a step."""


@dataclass(frozen=True, slots=True)
class Group:
    """Processes of a training that run on one machine.

    Attributes:
        world: processes of the training. 1: one by itself, which no launcher has started.
        first: the rank of the first one here.
        count: how many of them are here.
        address: where the first rank of all listens.
        port: where the first rank of all listens, if there is more than one process.
        interface: by which gloo reaches the others.
    """

    world: int
    first: int = 0
    count: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    interface: str = "lo"

    def environment(self, local: int) -> dict[str, str]:
        """Return the variables of this local process, as torchrun sets them."""
        if self.world == 1:
            return dict(ALIKE)
        return {
            **ALIKE,
            "RANK": str(self.first + local),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.count),
            "GROUP_RANK": str(self.first // self.count),
            "TORCHELASTIC_RUN_ID": "benchmark",
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "GLOO_SOCKET_IFNAME": self.interface,
        }


@contextmanager
def started(
    words: Sequence[str],
    group: Group,
    *,
    first_output: int | None = None,
    errors: int = STDERR,
    more: Callable[[int], Mapping[str, str]] = lambda _: {},
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the processes, and kill them on exit.

    Args:
        words: the module and its arguments.
        group: those to start.
        first_output: where that of the first goes, as for Popen; the others' goes to the errors.
        errors: the descriptor of the file for all errors; by default our own.
        more: variables of the process of this local rank beside the usual ones.
    """
    made: list[subprocess.Popen[str]] = []
    try:
        for local in range(group.count):
            made.append(  # noqa: PERF401 - where one cannot be started, those before it are to be ended
                subprocess.Popen(
                    [sys.executable, "-m", *words],
                    env={**os.environ, **group.environment(local), **more(local)},
                    stdin=subprocess.DEVNULL,
                    stdout=errors if local else first_output,
                    stderr=errors,
                    text=True,
                )
            )
        yield made
    finally:
        for each in made:
            each.kill()
        for each in made:
            each.wait()


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait(processes: Sequence[subprocess.Popen[str]]) -> int:
    """Wait until all processes succeed or one fails, and return the exit code."""
    while True:
        codes = [each.poll() for each in processes]
        if failed := [code for code in codes if code]:
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if None not in codes:
            return 0
        time.sleep(LOOK_SECONDS)


def main() -> int:
    """Run the command, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.training.ranks", description=__doc__)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, help="by default one that is free here")
    parser.add_argument("--interface", default="lo")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="MODULE …")
    options = parser.parse_args()
    # SIGTERM stops all processes.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    group = Group(
        options.world, options.first, options.count, options.address, options.port or free_port(), options.interface
    )
    with started(options.words, group) as processes:
        return wait(processes)


if __name__ == "__main__":
    sys.exit(main())
