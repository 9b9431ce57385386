"""The state of all servers for `Checkpoints`. The optimizer's state of a parameter is not known before its first step."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Mapping


class ServerState(Stateful):  # type: ignore[misc]  # torch is there where this runs
    """For the trainer that saves and loads: `checkpoints.save(step, {"servers": kept})`.

    Attributes:
        state: the result of `Parameters.state_dict`, or the loaded state; None before.
    """

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None

    @override
    def state_dict(self) -> dict[str, bytes]:
        buffer = io.BytesIO()
        torch.save(self.state, buffer)
        return {"state": buffer.getvalue()}

    @override
    def load_state_dict(self, state_dict: Mapping[str, bytes]) -> None:
        self.state = torch.load(io.BytesIO(state_dict["state"]), weights_only=True)
