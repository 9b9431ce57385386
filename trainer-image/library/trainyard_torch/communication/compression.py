"""Gradients of a DDP model in fewer bytes: torch's communication hooks, counted, and with a state for checkpoints.

It does not choose: what is lost in precision is the user's to weigh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

from trainyard_torch.communication.powersgd import LowRank, PowerSGD

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch.distributed as dist
    from torch import Tensor
    from torch.futures import Future

Plain = Literal["none", "fp16", "bf16"]
HALF = 2
"""Bytes of a number in fp16 and bf16."""


class Compression:
    """What happens to the gradients of one model, and how many bytes they were. `compress` makes it.

    Attributes:
        sent_bytes: what this process has handed to all-reduces so far. A ring sends 2 (n - 1) / n times as much over the wire.
        full_bytes: what it would have been without compression.
    """

    def __init__(self, model: DistributedDataParallel, how: Plain | PowerSGD) -> None:
        self.sent_bytes = self.full_bytes = 0
        self._how, self._group = how, model.process_group
        # As in the checkpoint of the model itself, without DDP's prefix.
        parameters = {name: value for name, value in model.module.named_parameters() if value.requires_grad}
        self._low_rank = LowRank(how, parameters, self._group) if isinstance(how, PowerSGD) else None

    def exchange(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Begin to exchange one bucket of gradients: DDP calls it."""
        buffer = bucket.buffer()
        self.full_bytes += buffer.nbytes
        if self._low_rank is not None:
            future, sent = self._low_rank.exchange(bucket)
            self.sent_bytes += sent
            return future
        if self._how == "none":
            self.sent_bytes += buffer.nbytes
            return allreduce_hook(self._group, bucket)
        self.sent_bytes += HALF * buffer.numel()
        return (fp16_compress_hook if self._how == "fp16" else bf16_compress_hook)(self._group, bucket)

    def reset(self) -> None:
        """Drop PowerSGD's error feedback, for example when a run returns to an earlier state without its checkpoint."""
        if self._low_rank is not None:
            self._low_rank.reset()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold: the same on all processes, for any number of them; empty but for PowerSGD.

        With PowerSGD, all processes have to ask at the same time, as `torch.distributed.checkpoint` does.
        """
        return {} if self._low_rank is None else self._low_rank.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            ValueError: it is of another model, or of another rank of PowerSGD.
        """
        if self._low_rank is not None:
            self._low_rank.load_state_dict(state)


def compress(model: DistributedDataParallel, how: Plain | Literal["powersgd"] | PowerSGD) -> Compression:
    """Exchange the gradients of a model in fewer bytes, from the next step on. Once for a model.

    Args:
        model: wrapped in DDP, with the same arguments on all processes.
        how: "fp16" and "bf16" halve the bytes of fp32: fp16 has more digits, and overflows beyond 65504 (divide the loss, or take bf16).
            "powersgd", or `PowerSGD` with its options: far fewer bytes for matrices, at the price of an approximation. "none": as DDP
            does without, counted, to compare with.

    Returns:
        What counts the bytes, and belongs into the checkpoint with PowerSGD.

    Raises:
        ValueError: the model is not wrapped in DDP, it has a communication hook already, or `how` is invalid.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(  # noqa: TRY004 - callers handle one kind of error for a wrong setting
            f"model must be wrapped in DistributedDataParallel, got a {type(model).__name__}: with FSDP2, set "
            "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) instead"
        )
    known = [*get_args(Plain), "powersgd"]
    if not isinstance(how, PowerSGD) and how not in known:
        raise ValueError(f"how must be one of {', '.join(known)}, or a PowerSGD, got {how!r}")
    compression = Compression(model, PowerSGD() if how == "powersgd" else how)
    try:
        # A lambda has no annotations: DDP compares annotations with types, and here they are strings.
        model.register_comm_hook(compression, lambda state, bucket: state.exchange(bucket))
    except RuntimeError as error:
        raise ValueError(f"this model takes no (other) communication hook: {error}") from error
    return compression
