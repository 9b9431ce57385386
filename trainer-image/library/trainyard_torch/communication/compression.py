"""Compress the gradients of a DDP model: torch's communication hooks, with byte counts and a state for checkpoints.

The user chooses the compression, and weighs the loss of precision.
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
"""The bytes of a number in fp16 and bf16."""


class Compression:
    """The compression of one model's gradients, with byte counts. Made by `compress`.

    Attributes:
        sent_bytes: the bytes that this process has passed to all-reduces. A ring sends 2 (n - 1) / n times as much over the network.
        full_bytes: the same without compression.
    """

    def __init__(self, model: DistributedDataParallel, how: Plain | PowerSGD) -> None:
        self.sent_bytes = self.full_bytes = 0
        self._how, self._group = how, model.process_group
        # As in the checkpoint of the model itself, without DDP's prefix.
        parameters = {name: value for name, value in model.module.named_parameters() if value.requires_grad}
        self._low_rank = LowRank(how, parameters, self._group) if isinstance(how, PowerSGD) else None

    def exchange(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start to reduce one bucket of gradients. DDP calls it."""
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
        """Return the state for a checkpoint: the same on all processes, for any number of them; empty except for PowerSGD.

        With PowerSGD, all processes must call it at the same time, as `torch.distributed.checkpoint` does.
        """
        return {} if self._low_rank is None else self._low_rank.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`.

        Raises:
            ValueError: it is of another model, or of another rank of PowerSGD.
        """
        if self._low_rank is not None:
            self._low_rank.load_state_dict(state)


def compress(model: DistributedDataParallel, how: Plain | Literal["powersgd"] | PowerSGD) -> Compression:
    """Compress the gradients of a model from the next step on. Call it once per model.

    Args:
        model: a model in DDP, with the same arguments on all processes.
        how: "fp16" and "bf16" halve the bytes of fp32: fp16 has more digits, and overflows beyond 65504 (divide the loss, or use bf16).
            "powersgd", or `PowerSGD` with its options: far fewer bytes for matrices, by an approximation. "none": DDP's own reduction with byte
            counts, for comparison.

    Returns:
        The byte counts. With PowerSGD, store it in the checkpoint.

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
