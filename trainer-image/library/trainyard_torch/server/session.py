"""The parameter server as a program uses it: each process joins, servers serve until all have left, trainers pull and push.

It uses torch.distributed.rpc, which sends CPU tensors; the parameters of a trainer may be on a GPU. `shard` handles gradients, `serving`
serves, and `parameters` sends a trainer's requests.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.distributed import rpc

from trainyard_torch.context import STOPPED_EXIT_CODE, configure_logging
from trainyard_torch.errors import exit_with_code, first_line
from trainyard_torch.server import serving
from trainyard_torch.server.answers import Counts, ServerError, WorkerLostError
from trainyard_torch.server.parameters import Parameters
from trainyard_torch.server.roles import Roles, shares
from trainyard_torch.server.serving import SHARDS
from trainyard_torch.server.shard import Shard
from trainyard_torch.server.stop_signal import StopSignal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

__all__ = ["Counts", "Parameters", "Roles", "ServerError", "WorkerLostError", "join_parameter_server"]


@contextmanager
def join_parameter_server(  # noqa: PLR0913 - each is a choice of its own
    model: torch.nn.Module,
    optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
    roles: Roles,
    rank: int,
    *,
    staleness: int | None = None,
    state: Callable[[], Mapping[str, Any] | None] | None = None,
    timeout: float = 300.0,
    init_method: str = "env://",
) -> Iterator[Parameters | None]:
    """Join the training. A trainer gets the parameters; a server gets None, and serves at the end of the block until all trainers have left.

    Call it on all processes with the same arguments. Trainers start with the servers' parameters, so their own initial ones do not matter. If a
    stop was requested, the end of the block exits with code 90. WorkerLostError exits with 92 after its traceback.

    Args:
        model: the model, on all processes. Its parameters that need a gradient are served. Buffers, such as running means, stay local.
        optimizer: makes an optimizer of a list of parameters, on the servers: `partial(torch.optim.SGD, lr=0.1)`.
        roles: which processes serve and which train.
        rank: the rank of this process.
        staleness: None: synchronous SGD; each step uses the mean of all trainers' gradients. A number: asynchronous SGD. Each gradient
                is applied on its own, at most this many updates after the parameters that it was computed with. At least `trainers` - 1.
        state: returns the result of `Parameters.state_dict`, or None to start at step 0. Called on trainer 0 only; no trainer starts before
            all servers have it.
        timeout: the timeout of a call in seconds, including the wait for the slowest trainer in a synchronous step, and of `state`.
        init_method: the rendezvous, as for `torch.distributed.init_process_group`.

    Raises:
        ValueError: an argument is out of range.
        RuntimeError: the rendezvous failed.
        SystemExit: with 90, a stop was requested; with 92, another process was lost.
    """
    if not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, got {timeout}")
    configure_logging()
    served = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    held = shares({name: parameter.numel() for name, parameter in served.items()}, roles.servers)
    here, stop_signal = roles.name(rank), StopSignal(os.environ)
    try:
        if roles.serves(rank):
            own = {name: served[name] for name in held[rank - roles.trainers]}
            # Before the others can call.
            SHARDS[here] = Shard(own, optimizer, roles.trainers, staleness)
        options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=timeout, init_method=init_method)
        with exit_with_code():
            rpc.init_rpc(
                here,
                rank=rank,
                world_size=roles.world_size,
                backend=rpc.BackendType.TENSORPIPE,
                rpc_backend_options=options,
            )
            try:
                parameters = None if roles.serves(rank) else Parameters(served, held, rank, timeout, stop_signal)
                if parameters:
                    parameters.begin(state)
                yield parameters
                stopped = (
                    parameters.leave() if parameters else serving.serve(here, SHARDS[here], roles, stop_signal, timeout)
                )
            except BaseException:
                # A failed process does not wait for the others; they notice by their own calls.
                rpc.shutdown(graceful=False)
                raise
            try:
                # All have left: wait until the last reply has been delivered.
                rpc.shutdown(graceful=True, timeout=timeout)
            except RuntimeError as error:
                raise WorkerLostError(f"another process was lost at the very end: {first_line(error)}") from error
    finally:
        SHARDS.pop(here, None)
        stop_signal.close()
    if stopped:
        sys.exit(STOPPED_EXIT_CODE)
