"""The parameter server as a program uses it: each process joins, servers serve until all have left, trainers pull and push.

Over torch.distributed.rpc, which sends tensors of the CPU; the parameters of a trainer may be on a GPU. This is a rim: what happens to gradients is
in `shard`.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import rpc

from trainyard_torch.server.rules import Roles, shares
from trainyard_torch.server.shard import Counts, Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.futures import Future

    from trainyard_torch.server.held import Tensors

SHORT = 10.0
"""Seconds for a question that needs no gradient."""

_SERVED: dict[str, Shard] = {}
"""What this process serves, by its name among those that call each other. Calls from others find functions by their names, and nothing else: so a
server has to be found from a module."""


class ServerError(Exception):
    """A server did not answer, or cannot. The text says which, and whom it waits for."""


@contextmanager
def joined(
    model: torch.nn.Module,
    optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    roles: Roles,
    rank: int,
    *,
    staleness: int | None = None,
    timeout: float = 300.0,
    init_method: str = "env://",
) -> Iterator[Parameters | None]:
    """Take part: a trainer gets the parameters to train with, a server None, and it serves at the end of the block until all trainers have left.

    All processes call it with alike arguments. Trainers begin with the servers' parameters, so their own initial ones do not matter.

    Args:
        model: on all of them; those of its parameters that need a gradient are served. Buffers, as running means, stay each trainer's own.
        optimizer: makes one of a list of parameters, on the servers: `partial(torch.optim.SGD, lr=0.1)`.
        roles: who serves and who trains.
        rank: which process this is.
        staleness: None: synchronous SGD; each step is made of the mean of all trainers' gradients. A number: asynchronous SGD; each gradient is
            applied for itself, at most so many updates after the parameters that it was made with; from `trainers` - 1 on.
        timeout: seconds that a call may last, with the wait for the slowest trainer in a synchronous step.
        init_method: where they meet, as for `torch.distributed.init_process_group`.

    Raises:
        ValueError: an argument is out of its range.
        RuntimeError: the others were not found.
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, and is {timeout}")
    served = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    held = shares({name: parameter.numel() for name, parameter in served.items()}, roles.servers)
    here = roles.name(rank)
    if roles.serves(rank):
        own = {name: served[name] for name in held[rank - roles.trainers]}
        # Before the others can call.
        _SERVED[here] = Shard(own, optimizer, roles.trainers, staleness)
    try:
        options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=timeout, init_method=init_method)
        rpc.init_rpc(
            here, rank=rank, world_size=roles.world, backend=rpc.BackendType.TENSORPIPE, rpc_backend_options=options
        )
        graceful = False
        try:
            parameters = None if roles.serves(rank) else Parameters(served, held, rank, timeout)
            yield parameters
            if parameters is not None:
                parameters.leave()
            graceful = True
        finally:
            # Who failed does not wait for the others; they hear of it by their own calls.
            rpc.shutdown(graceful=graceful)
    finally:
        _SERVED.pop(here, None)


class Parameters:
    """The parameters of a model, as a trainer sees them. For one thread. Made by `joined`.

    Attributes:
        versions: updates in the parameters that this trainer has, by server.
    """

    def __init__(
        self, model: Mapping[str, torch.nn.Parameter], held: list[list[str]], trainer: int, timeout: float
    ) -> None:
        self._model, self._trainer, self._timeout = model, trainer, timeout
        self._held = {f"server-{number}": names for number, names in enumerate(held)}
        self.versions: dict[str, int] = {}
        self.pull()

    def pull(self) -> None:
        """The model has the servers' parameters. Needed after `load_state_dict`, on all trainers; each push brings them too.

        Raises:
            ServerError: a server does not answer, or refuses.
        """
        self._take(self._all(_pull, dict.fromkeys(self._held, (self._trainer,))))

    def push(self) -> None:
        """The gradients of the model go to the servers; it has the new parameters when this returns, and no gradients.

        Raises:
            ServerError: a server does not answer, or refuses. The text says which trainers it waits for.
        """
        words = {}
        for server, names in self._held.items():
            gradients = {name: None if (found := self._model[name].grad) is None else found.cpu() for name in names}
            words[server] = (self._trainer, gradients)
        self._take(self._all(_push, words))
        for parameter in self._model.values():
            parameter.grad = None

    def configure(self, **options: Any) -> None:
        """The optimizers of all servers go on with these options: `configure(lr=0.01)`. For one trainer, between its steps.

        Raises:
            ServerError: there is no such option, or a server does not answer.
        """
        self._all(_configure, dict.fromkeys(self._held, (options,)))

    def counts(self) -> dict[str, Counts]:
        """What each server has done, and how stale gradients were.

        Raises:
            ServerError: a server does not answer.
        """
        return self._all(_counts, dict.fromkeys(self._held, ()))

    def state_dict(self) -> dict[str, Any]:
        """Parameters and the optimizer's state, by the names of parameters: for a checkpoint that any number of servers can load.

        With synchronous training it is of one step, if one trainer asks between two of its own; else each server's part is of a moment of its own.

        Raises:
            ServerError: a server does not answer.
        """
        whole: dict[str, Any] = {"parameters": {}, "optimizer": {}, "options": {}}
        for part in self._all(_state, dict.fromkeys(self._held, ())).values():
            for name, found in part.items():
                whole[name].update(found)
        return whole

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The servers go on from this state. By one trainer, before any pushes; then each has to pull.

        Raises:
            ServerError: it is of another model, or a server does not answer.
        """
        words = {}
        for server, names in self._held.items():
            parts = {key: {n: state[key][n] for n in names if n in state[key]} for key in ("parameters", "optimizer")}
            words[server] = ({**parts, "options": state["options"]},)
        self._all(_load, words)

    def leave(self) -> None:
        """This trainer is done, and the others do not wait for it. `joined` calls it at the end of its block.

        Raises:
            ServerError: a server does not answer.
        """
        self._all(_leave, dict.fromkeys(self._held, (self._trainer,)))

    def _take(self, answers: dict[str, tuple[int, Tensors]]) -> None:
        with torch.no_grad():
            for server, (version, tensors) in answers.items():
                self.versions[server] = version
                for name, tensor in tensors.items():
                    self._model[name].copy_(tensor)

    def _all(self, act: Callable[..., Any], words: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """What all servers answer; they are asked at the same time."""
        try:
            asked = {server: rpc.rpc_async(server, act, (server, *each)) for server, each in words.items()}
        except RuntimeError as error:
            raise ServerError(f"the servers cannot be asked: {error}") from error
        answers = {}
        for server, future in asked.items():
            try:
                answer = future.wait()
            # What the server raised comes as an error of its kind; a lost connection and the time-out as RuntimeError.
            except Exception as error:
                raise ServerError(self._why(server, error)) from error
            # The exception of a future that a function with async_execution has returned is sent as if it were its answer.
            if isinstance(answer, Exception):
                raise ServerError(f"{server} refused: {answer}") from answer
            answers[server] = answer
        return answers

    def _why(self, server: str, error: Exception) -> str:
        if not isinstance(error, RuntimeError):
            return f"{server} refused: {str(error) or type(error).__name__}"
        missing: list[int] | None = None
        with suppress(Exception):
            missing = rpc.rpc_sync(server, _missing, (server,), timeout=min(SHORT, self._timeout))
        if missing is None:
            return f"{server} does not answer: it has died, or cannot be reached ({error})"
        if missing:
            names = ", ".join(f"trainer-{trainer}" for trainer in missing)
            return f"{server} has waited for {names} for {self._timeout:g} s: it has died, hangs, or is slower than timeout allows"
        return f"{server} did not answer: {error}"


def _pull(server: str, trainer: int) -> tuple[int, Tensors]:
    return _SERVED[server].pull(trainer)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]  # torch is not typed here
def _push(server: str, trainer: int, gradients: Mapping[str, torch.Tensor | None]) -> Future[tuple[int, Tensors]]:
    return _SERVED[server].push(trainer, gradients)


def _leave(server: str, trainer: int) -> None:
    _SERVED[server].leave(trainer)


def _missing(server: str) -> list[int]:
    return _SERVED[server].missing()


def _counts(server: str) -> Counts:
    return _SERVED[server].counts()


def _configure(server: str, options: Mapping[str, Any]) -> None:
    _SERVED[server].configure(options)


def _state(server: str) -> dict[str, Any]:
    return _SERVED[server].state()


def _load(server: str, state: Mapping[str, Any]) -> None:
    _SERVED[server].load(state)
