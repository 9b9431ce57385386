"""A server's side of the calls: the functions that trainers call by name, and how long a server serves.

It looks after the other processes meanwhile: one that was killed is found within seconds, by its connection, and one that does not answer
at all after the time-out. Then those who wait are told, and the server ends.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from torch.distributed import rpc

from trainyard_torch.errors import first_line
from trainyard_torch.server.answers import Answer, LostError, Standing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch.futures import Future

    from trainyard_torch.server.end import End
    from trainyard_torch.server.rules import Roles
    from trainyard_torch.server.shard import Shard

SERVED: dict[str, Shard] = {}
"""What this process serves, by its name among those that call each other. Calls from others find functions by their names, and nothing else: so a
server has to be found from a module."""
FIRST = "server-0"
"""The server whose word counts where all have to be told the same."""
LOOK_SECONDS = 0.05
PING_SECONDS = 2.0
TELL_SECONDS = 10.0
"""How long a server that gives up waits for trainers to come, so that they hear why."""
SENT_SECONDS = 0.5
"""What an answer takes that was given."""


class Peers:
    """Whether other processes live. Each is asked every two seconds, and nobody waits for the answers.

    Args:
        timeout: seconds after which one that does not answer is lost.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._asked: dict[str, tuple[float, Future[None]]] = {}

    def lost(self, names: Iterable[str]) -> dict[str, str]:
        """Those that are not there any more, and what torch says of them."""
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
        """Raises RuntimeError where it is known already that this one is lost."""
        self._asked[name] = time.monotonic(), rpc.rpc_async(name, alive, timeout=self._timeout)
        return self._asked[name]


def serve(here: str, shard: Shard, roles: Roles, end: End, timeout: float) -> bool:
    """Until all trainers have left. Whether they have because the training was asked to end.

    Raises:
        LostError: another process has died, or does not answer.
    """
    peers, wished = Peers(timeout), False
    servers = [name for rank in range(roles.trainers, roles.world) if (name := roles.name(rank)) != here]
    while (stands := shard.standing()).here:
        trainers = {roles.name(trainer): trainer for trainer in stands.here}
        names = [*trainers, *servers]
        if lost := peers.lost(names):
            # One that is lost takes others with it within moments: all are to be named.
            peers = Peers(timeout)
            peers.lost(names)
            time.sleep(SENT_SECONDS)
            lost |= peers.lost(names)
            _give_up(shard, lost, {trainers[name] for name in lost if name in trainers})
        if stands.stopped:
            end.heed()
        if end.agreed:
            end.must_stop(stands.version)
        elif end.wished and not wished:
            wished = True
            # Where that one is lost, the next look tells.
            with suppress(RuntimeError):
                rpc.rpc_sync(FIRST, stop, (FIRST,), timeout=timeout)
        time.sleep(LOOK_SECONDS)
    return stands.stopped


def _give_up(shard: Shard, lost: Mapping[str, str], gone: set[int]) -> NoReturn:
    names = ", ".join(sorted(lost))
    text = f"{names} {'has' if len(lost) == 1 else 'have'} died, or cannot be reached ({next(iter(lost.values()))})"
    shard.lose(text)
    until = time.monotonic() + TELL_SECONDS
    while set(shard.standing().ignorant) - gone and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    time.sleep(SENT_SECONDS)
    raise LostError(text)


def alive() -> None:
    """Nothing: who answers lives."""


def begin(server: str, state: Mapping[str, Any] | None) -> None:
    """Trainer 0 lets all in."""
    SERVED[server].begin(state)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]  # torch is not typed here
def begun(server: str) -> Future[int]:
    """The answer comes when trainer 0 has."""
    return SERVED[server].begun()


def pull(server: str, trainer: int) -> Answer:
    """The parameters."""
    return SERVED[server].pull(trainer)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]  # as above
def push(
    server: str,
    trainer: int,
    gradients: Mapping[str, torch.Tensor | None],
    wish: bool,  # noqa: FBT001 - calls of torch take no keywords for it
) -> Future[Answer]:
    """A gradient, and whether its trainer was asked to end."""
    if wish:
        SERVED[server].stop()
    return SERVED[server].push(trainer, gradients)


def stop(server: str) -> None:
    """A server was asked to end."""
    SERVED[server].stop()


def heed(server: str) -> None:
    """A trainer comes to its end because it was asked to."""
    SERVED[server].heed()


def rest(server: str, trainer: int) -> None:
    """A trainer makes no gradient for now."""
    SERVED[server].rest(trainer)


def leave(server: str, trainer: int) -> None:
    """A trainer is done."""
    SERVED[server].leave(trainer)


def standing(server: str) -> Standing:
    """How the server stands."""
    return SERVED[server].standing()


def configure(server: str, options: Mapping[str, Any]) -> None:
    """Options of the optimizer."""
    SERVED[server].configure(options)


def state(server: str) -> dict[str, Any]:
    """What a checkpoint has to hold of this server."""
    return SERVED[server].state()
