"""`python -m trainyard.helm_test.worker`: one of two workers that fit a line to points, each to its half, by the mean of their gradients.

Standard library only. It uses what a real training uses: the ranks and the rendezvous address of its environment, the network between two
pods, the agent that tells the operator of its steps.
"""

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEPS, RATE, SLOPE = 60, 0.1, 3.0
POINTS = tuple(number / 10 for number in range(-10, 10))
FORMAT = struct.Struct("!d")
PATIENCE_SECONDS = 120.0


@contextmanager
def connected(rank: int, address: str, port: int) -> Iterator[socket.socket]:
    """The connection to the other one: rank 0 waits for it, rank 1 tries until it is there. Raises OSError where it does not come."""
    if rank == 0:
        with socket.create_server(("", port)) as server:
            server.settimeout(PATIENCE_SECONDS)
            made, _ = server.accept()
    else:
        made = _reached(address, port)
    made.settimeout(PATIENCE_SECONDS)
    with made:
        yield made


def _reached(address: str, port: int) -> socket.socket:
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection((address, port), timeout=10)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def mean(peer: socket.socket, value: float) -> float:
    """Of both workers' numbers. Raises OSError where the other one is gone."""
    peer.sendall(FORMAT.pack(value))
    got = b""
    while len(got) < FORMAT.size:
        part = peer.recv(FORMAT.size - len(got))
        if not part:
            raise ConnectionError("the other worker is gone")
        got += part
    return float((value + FORMAT.unpack(got)[0]) / 2)


def train(rank: int, peer: socket.socket, tell: Callable[..., None], pause: float = 0.05) -> float:
    """Fit the slope; `tell` is told of each step. Returns the loss at the end, the same for both."""
    mine = POINTS[rank::2]
    slope = loss = 0.0
    for step in range(1, STEPS + 1):
        errors = [(slope - SLOPE) * point for point in mine]
        gradient = sum(2 * error * point for error, point in zip(errors, mine, strict=True)) / len(mine)
        loss = mean(peer, sum(error * error for error in errors) / len(mine))
        slope -= RATE * mean(peer, gradient)
        tell(step, total=STEPS, loss=loss)
        time.sleep(pause)
    return loss


def _teller() -> Callable[..., None]:
    """The agent's own, where it runs this."""
    try:
        from trainyard_agent import progress  # noqa: PLC0415 - it is there below an agent alone
    except ImportError:
        return lambda *_, **__: None
    return progress


def main() -> int:
    """Train as the environment says. Returns the exit code."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != 2:
        sys.stderr.write(f"the test needs two workers, and WORLD_SIZE is {world}\n")
        return 93
    with connected(rank, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as peer:
        loss = train(rank, peer, _teller())
    sys.stdout.write(f"rank {rank} of {world}: loss {loss:.2g} after {STEPS} steps\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
