"""A trainer's view of the model's parameters: its requests to the servers, and the handling of their replies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import rpc

from trainyard_torch.errors import first_line
from trainyard_torch.server import serving
from trainyard_torch.server.answers import Answer, Counts, ServerClosedError, ServerError, ServerStatus, WorkerLostError
from trainyard_torch.server.serving import FIRST_SERVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainyard_torch.server.stop_signal import StopSignal

STATUS_TIMEOUT_SECONDS = 10.0
"""The timeout in seconds for requests without a gradient."""
MAX_POLL_SECONDS = 1.0
"""The seconds between two checks of the other processes."""


class Parameters:
    """The parameters of a model, as a trainer sees them. For one thread. Made by `join_parameter_server`.

    Attributes:
        versions: the updates in the parameters of this trainer, by server.
        resumed_updates: the updates in the state that the training resumed from; 0 if it started at step 0.
    """

    def __init__(
        self,
        model: Mapping[str, torch.nn.Parameter],
        held: list[list[str]],
        trainer: int,
        timeout: float,
        stop_signal: StopSignal,
    ) -> None:
        self._model, self._trainer, self._timeout, self._stop_signal = model, trainer, timeout, stop_signal
        self._held = {f"server-{number}": names for number, names in enumerate(held)}
        self._stop_requested = self._stopped = False
        self.versions: dict[str, int] = {}
        self.resumed_updates = 0

    def begin(self, state: Callable[[], Mapping[str, Any] | None] | None) -> None:
        """Send the resumed state to all servers, and pull their parameters. Called by `join_parameter_server`.

        Raises:
            ServerError: it is of another model, or a server does not answer.
        """
        if self._trainer == 0:
            found = state() if state else None
            self._call_all(serving.begin, {server: (self._part(found, names),) for server, names in self._held.items()})
        self.resumed_updates = max(self._call_all(serving.begun, dict.fromkeys(self._held, ())).values())
        self.pull()

    def pull(self) -> None:
        """Load the current parameters of the servers into the model. Each push does so, too.

        Raises:
            ServerError: a server does not answer, or refuses.
        """
        self._take(self._call_all(serving.pull, dict.fromkeys(self._held, (self._trainer,))))

    def push(self) -> None:
        """Send the model's gradients to the servers, and load the new parameters. The gradients are then None.

        Raises:
            ServerError: a server does not answer, or refuses. The message names the trainers that it waits for.
            WorkerLostError: another process has died.
        """
        arguments, stop_received = {}, self._stop_signal.received
        for server, names in self._held.items():
            gradients = {name: None if (found := self._model[name].grad) is None else found.cpu() for name in names}
            arguments[server] = (self._trainer, gradients, stop_received)
        answers = self._call_all(serving.push, arguments)
        self._take(answers)
        self._stop_requested = answers[FIRST_SERVER].stop
        for parameter in self._model.values():
            parameter.grad = None

    def must_stop(self) -> bool:
        """Return whether a stop was requested by the agent, or by SIGTERM to a process: then leave the block. Call it after each push.

        With synchronous training, the answer is the same on all trainers after the same update. With asynchronous training, each receives it after
        its own next update. The end of the block then exits with code 90.
        """
        stops = (
            self._stop_signal.must_stop(self.versions[FIRST_SERVER])
            if self._stop_signal.coordinated
            else self._stop_requested
        )
        if stops and not self._stopped:
            self._stopped = True
            self._stop_signal.acknowledge()
            # A server that received SIGTERM learns that the stop is handled.
            self._call_all(serving.acknowledge, dict.fromkeys(self._held, ()))
        return self._stopped

    def wait_for_other_trainers(self) -> None:
        """Wait until all other trainers have left: then `state_dict` does not change any more. For one trainer, before it saves at the end.

        Raises:
            ServerError: a server does not answer.
            WorkerLostError: another process has died.
        """
        # With asynchronous updates, the others would wait for a gradient of this trainer.
        self._call_all(serving.release, dict.fromkeys(self._held, (self._trainer,)))
        self._until_only({self._trainer})

    def configure(self, **options: Any) -> None:
        """Set options of the optimizers of all servers: `configure(lr=0.01)`. For one trainer, between its steps.

        Raises:
            ServerError: there is no such option, or a server does not answer.
        """
        self._call_all(serving.configure, dict.fromkeys(self._held, (options,)))

    def counts(self) -> dict[str, Counts]:
        """Return the counts of each server, and the staleness of gradients.

        Raises:
            ServerError: a server does not answer.
        """
        found: dict[str, ServerStatus] = self._call_all(serving.status, dict.fromkeys(self._held, ()))
        return {server: status.counts for server, status in found.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and the optimizer's state by the names of parameters: for a checkpoint that any number of servers can load.

        With synchronous training it is of one step, if one trainer calls it between two of its steps. Otherwise the
        parts of servers may differ in time.

        Raises:
            ServerError: a server does not answer.
        """
        parts = [*self._call_all(serving.state, dict.fromkeys(self._held, ())).values()]
        state: dict[str, Any] = {"updates": min(part["updates"] for part in parts)}
        for kind in ("parameters", "optimizer", "options"):
            state[kind] = {name: value for part in parts for name, value in part[kind].items()}
        return state

    def leave(self) -> bool:
        """Leave, and wait until all trainers have left. Return whether a stop was requested. `join_parameter_server`
        calls it at the end of its block.

        Raises:
            ServerError: a server does not answer.
            WorkerLostError: another process has died.
        """
        self._call_all(serving.leave, dict.fromkeys(self._held, (self._trainer,)))
        self._until_only(set())
        return self._stopped

    def _until_only(self, trainers: set[int]) -> None:
        """Poll until only these trainers are left. There is no time limit: the server detects lost processes."""
        pause = 0.01
        while True:
            status: ServerStatus = self._call_all(serving.status, {FIRST_SERVER: ()})[FIRST_SERVER]
            if status.lost:
                raise WorkerLostError(status.lost)
            if trainers.issuperset(status.here):
                return
            time.sleep(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)

    def _part(self, state: Mapping[str, Any] | None, names: list[str]) -> dict[str, Any] | None:
        """Return the part of a state that a server needs."""
        if state is None:
            return None
        parts = {kind: {n: state[kind][n] for n in names if n in state[kind]} for kind in ("parameters", "optimizer")}
        return {**parts, "options": state["options"], "updates": state["updates"]}

    def _take(self, answers: Mapping[str, Answer]) -> None:
        with torch.no_grad():
            for server, answer in answers.items():
                self.versions[server] = answer.version
                for name, tensor in answer.parameters.items():
                    self._model[name].copy_(tensor)

    def _call_all(self, act: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
        """Return the replies of all servers, which are called at the same time."""
        try:
            asked = {server: rpc.rpc_async(server, act, (server, *each)) for server, each in arguments.items()}
        except RuntimeError as error:
            raise WorkerLostError(f"the servers cannot be asked: {first_line(error)}") from error
        answers = {}
        for server, future in asked.items():
            try:
                answer = future.wait()
            # Errors of the server arrive with their own type; a lost connection and a timeout arrive as RuntimeError.
            except Exception as error:
                raise self._explain(server, error) from error
            # An exception in a future of a function with async_execution is sent as if it were its result.
            if isinstance(answer, ServerClosedError):
                raise WorkerLostError(str(answer)) from answer
            if isinstance(answer, Exception):
                raise ServerError(f"{server} refused: {answer}") from answer
            answers[server] = answer
        return answers

    def _explain(self, server: str, error: Exception) -> ServerError:
        if not isinstance(error, RuntimeError):
            return ServerError(f"{server} refused: {str(error) or type(error).__name__}")
        try:
            status: ServerStatus = rpc.rpc_sync(
                server, serving.status, (server,), timeout=min(STATUS_TIMEOUT_SECONDS, self._timeout)
            )
        except Exception:  # noqa: BLE001 - whatever it is, nothing is known of the server
            return WorkerLostError(f"{server} does not answer: it has died, or cannot be reached ({first_line(error)})")
        if status.lost:
            return WorkerLostError(status.lost)
        if status.missing:
            names = ", ".join(f"trainer-{trainer}" for trainer in status.missing)
            return ServerError(
                f"{server} has waited for {names} for {self._timeout:g} s: it has died, hangs, or is slower than timeout allows"
            )
        return ServerError(f"{server} did not answer: {error}")
