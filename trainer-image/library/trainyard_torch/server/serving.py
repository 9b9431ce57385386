"""A server's side of the calls: the functions that trainers call by name, and the time that a server serves.

Meanwhile it monitors the other processes: a killed process is detected within seconds by its connection, an unresponsive one
after the timeout. Then all waiting trainers are notified, and the server exits.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from torch.distributed import rpc

from trainyard_torch.errors import first_line
from trainyard_torch.server.answers import Answer, ServerStatus, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch.futures import Future

    from trainyard_torch.server.roles import Roles
    from trainyard_torch.server.shard import Shard
    from trainyard_torch.server.stop_signal import StopSignal

SHARDS: dict[str, Shard] = {}
"""The shards of this process by its RPC name. Remote calls find functions by their names and nothing else, so the shard must be found
from a module.
"""
FIRST_SERVER = "server-0"
"""The server whose reply is authoritative if all trainers need the same one."""
POLL_SECONDS = 0.05
PING_SECONDS = 2.0
NOTIFY_SECONDS = 10.0
"""Time limit for notifying trainers before the server exits."""
FLUSH_SECONDS = 0.5
"""The time for delivering the last reply, in seconds."""


class Peers:
    """The liveness of other processes. Each is pinged every two seconds, without waiting for the reply.

    Args:
        timeout: the seconds without a reply after which a process is lost.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._asked: dict[str, tuple[float, Future[None]]] = {}

    def lost(self, names: Iterable[str]) -> dict[str, str]:
        """Return the processes that are lost, each with torch's message."""
        now, found = time.monotonic(), {}
        for name in names:
            try:
                since, future = self._asked.get(name) or self._ask(name)
                if future.done():
                    future.wait()
                    if now - since >= PING_SECONDS:
                        self._ask(name)
            except RuntimeError as error:
                found[name] = first_line(error)
        return found

    def _ask(self, name: str) -> tuple[float, Future[None]]:
        """Raise RuntimeError if this process is known to be lost."""
        self._asked[name] = time.monotonic(), rpc.rpc_async(name, ping, timeout=self._timeout)
        return self._asked[name]


def serve(here: str, shard: Shard, roles: Roles, stop_signal: StopSignal, timeout: float) -> bool:
    """Serve until all trainers have left. Return whether they have left because a stop was requested.

    Raises:
        WorkerLostError: another process has died, or does not answer.
    """
    peers, received = Peers(timeout), False
    servers = [name for rank in range(roles.trainers, roles.world_size) if (name := roles.name(rank)) != here]
    while (status := shard.status()).here:
        trainers = {roles.name(trainer): trainer for trainer in status.here}
        names = [*trainers, *servers]
        if lost := peers.lost(names):
            # A lost process often causes more within moments: name all of them.
            peers = Peers(timeout)
            peers.lost(names)
            time.sleep(FLUSH_SECONDS)
            lost |= peers.lost(names)
            _close(shard, lost, {trainers[name] for name in lost if name in trainers})
        if status.stopped:
            stop_signal.acknowledge()
        if stop_signal.coordinated:
            stop_signal.must_stop(status.version)
        elif stop_signal.received and not received:
            received = True
            # If that server is lost, the next poll detects it.
            with suppress(RuntimeError):
                rpc.rpc_sync(FIRST_SERVER, stop, (FIRST_SERVER,), timeout=timeout)
        time.sleep(POLL_SECONDS)
    return status.stopped


def _close(shard: Shard, lost: Mapping[str, str], gone: set[int]) -> NoReturn:
    names = ", ".join(sorted(lost))
    text = f"{names} {'has' if len(lost) == 1 else 'have'} died, or cannot be reached ({next(iter(lost.values()))})"
    shard.close(text)
    until = time.monotonic() + NOTIFY_SECONDS
    while set(shard.status().ignorant) - gone and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    time.sleep(FLUSH_SECONDS)
    raise WorkerLostError(text)


def ping() -> None:
    """Do nothing: a reply proves that the process is alive."""


def begin(server: str, state: Mapping[str, Any] | None) -> None:
    """Start the training with this state. Trainer 0 calls it."""
    SHARDS[server].begin(state)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]  # torch is not typed here
def begun(server: str) -> Future[int]:
    """Reply when trainer 0 has started the training."""
    return SHARDS[server].begun()


def pull(server: str, trainer: int) -> Answer:
    """Return the parameters."""
    return SHARDS[server].pull(trainer)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]  # as above
def push(
    server: str,
    trainer: int,
    gradients: Mapping[str, torch.Tensor | None],
    stop_received: bool,  # noqa: FBT001 - calls of torch take no keywords for it
) -> Future[Answer]:
    """Apply a gradient, and record whether its trainer was requested to stop."""
    if stop_received:
        SHARDS[server].stop()
    return SHARDS[server].push(trainer, gradients)


def stop(server: str) -> None:
    """Record that a server was requested to stop."""
    SHARDS[server].stop()


def acknowledge(server: str) -> None:
    """Record that a trainer is finishing because a stop was requested."""
    SHARDS[server].acknowledge()


def release(server: str, trainer: int) -> None:
    """Record that a trainer computes no gradient for now."""
    SHARDS[server].release(trainer)


def leave(server: str, trainer: int) -> None:
    """Record that a trainer has left."""
    SHARDS[server].leave(trainer)


def status(server: str) -> ServerStatus:
    """Return the status of the server."""
    return SHARDS[server].status()


def configure(server: str, options: Mapping[str, Any]) -> None:
    """Set options of the optimizer."""
    SHARDS[server].configure(options)


def state(server: str) -> dict[str, Any]:
    """Return the state of this server for a checkpoint."""
    return SHARDS[server].state()
