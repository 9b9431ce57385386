"""`python -m dev.benchmarks.training.ranks`: starts the processes of a training, or those of one of its machines, as torchrun would, and waits for them.

Standard library only. The output of the first of them goes where ours does, that of the others to where errors go. The first that fails ends
the others; its exit code is ours.
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
"""For all. Memory that is freed stays with the process: else chance, where in the heap something lies, decides whether it goes back to the kernel in
each step and has to be had anew, which makes a step twice as long."""


@dataclass(frozen=True, slots=True)
class Group:
    """Processes of a training that run on one machine.

    Attributes:
        world: processes of the training. 1: one by itself, which no launcher has started.
        first: the rank of the first one here.
        count: how many of them are here.
        address: where the first rank of all listens.
        port: likewise; of a training that has more than one process.
        interface: by which gloo reaches the others.
    """

    world: int
    first: int = 0
    count: int = 1
    address: str = "127.0.0.1"
    port: int = 0
    interface: str = "lo"

    def environment(self, local: int) -> dict[str, str]:
        """What this process of the machine finds set, as by torchrun."""
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
    """The processes, which are gone afterwards.

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
    """One of this machine that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait(processes: Sequence[subprocess.Popen[str]]) -> int:
    """Until all have ended well, or one has not: its exit code."""
    while True:
        codes = [each.poll() for each in processes]
        if failed := [code for code in codes if code]:
            return failed[0] if failed[0] > 0 else 128 - failed[0]
        if None not in codes:
            return 0
        time.sleep(LOOK_SECONDS)


def main() -> int:
    """The command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.training.ranks", description=__doc__)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, help="by default one that is free here")
    parser.add_argument("--interface", default="lo")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="MODULE …")
    said = parser.parse_args()
    # Whoever ends us means all of them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    group = Group(said.world, said.first, said.count, said.address, said.port or free_port(), said.interface)
    with started(said.words, group) as processes:
        return wait(processes)


if __name__ == "__main__":
    sys.exit(main())
