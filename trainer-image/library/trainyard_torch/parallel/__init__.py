"""A model spread over processes: by samples, parameters, matrices, layers and sequences, and any of them together."""

from trainyard_torch.parallel.context import split_sequences
from trainyard_torch.parallel.gradients import by_mesh, clip_gradients, synchronising
from trainyard_torch.parallel.pipeline import Pipeline, stages
from trainyard_torch.parallel.replicated import replicate
from trainyard_torch.parallel.sharded import shard
from trainyard_torch.parallel.tensor import split_tensors

__all__ = [
    "Pipeline",
    "by_mesh",
    "clip_gradients",
    "replicate",
    "shard",
    "split_sequences",
    "split_tensors",
    "stages",
    "synchronising",
]
