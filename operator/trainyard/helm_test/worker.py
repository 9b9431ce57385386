"""`python -m trainyard.helm_test.worker`: one of two data-parallel workers that fit a line to points, each to half of them.

Standard library only. It uses what real training uses. That is the rank and the rendezvous address in its environment,
the network between two pods, and the agent that reports its steps.
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
PEER_TIMEOUT_SECONDS = 120.0


@contextmanager
def connected(rank: int, address: str, port: int) -> Iterator[socket.socket]:
    """Connect to the other worker: rank 0 listens, rank 1 retries until it is connected. Raises OSError after the timeout."""
    if rank == 0:
        with socket.create_server(("", port)) as server:
            server.settimeout(PEER_TIMEOUT_SECONDS)
            connection, _ = server.accept()
    else:
        connection = _connect(address, port)
    connection.settimeout(PEER_TIMEOUT_SECONDS)
    with connection:
        yield connection


def _connect(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + PEER_TIMEOUT_SECONDS
    while True:
        try:
            return socket.create_connection((address, port), timeout=10)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def mean(peer: socket.socket, value: float) -> float:
    """Return the mean of both workers' values. Raises OSError if the other worker has disconnected."""
    peer.sendall(FORMAT.pack(value))
    received = b""
    while len(received) < FORMAT.size:
        part = peer.recv(FORMAT.size - len(received))
        if not part:
            raise ConnectionError("the other worker has disconnected")
        received += part
    return float((value + FORMAT.unpack(received)[0]) / 2)


def train(rank: int, peer: socket.socket, report: Callable[..., None], pause: float = 0.05) -> float:
    """Fit the slope, and call `report` after each step. Return the final loss, the same on both workers."""
    mine = POINTS[rank::2]
    slope = loss = 0.0
    for step in range(1, STEPS + 1):
        errors = [(slope - SLOPE) * point for point in mine]
        gradient = sum(2 * error * point for error, point in zip(errors, mine, strict=True)) / len(mine)
        loss = mean(peer, sum(error * error for error in errors) / len(mine))
        slope -= RATE * mean(peer, gradient)
        report(step, total=STEPS, loss=loss)
        time.sleep(pause)
    return loss


def _progress_reporter() -> Callable[..., None]:
    """Return the agent's function, or one that does nothing without an agent."""
    try:
        from trainyard_agent import progress  # noqa: PLC0415 - importable only in a process that the agent started
    except ImportError:
        return lambda *_, **__: None
    return progress


def main() -> int:
    """Train with the rank in the environment, and return the exit code."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != 2:
        sys.stderr.write(f"WORLD_SIZE is {world}: the test needs 2 workers\n")
        return 93
    with connected(rank, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])) as peer:
        loss = train(rank, peer, _progress_reporter())
    sys.stdout.write(f"rank {rank} of {world}: loss {loss:.2g} after {STEPS} steps\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
