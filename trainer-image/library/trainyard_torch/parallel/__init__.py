"""A model spread over processes: by samples, parameters, matrices, layers and sequences, and any of them together."""

from trainyard_torch.parallel.activation_checkpointing import checkpoint_activations
from trainyard_torch.parallel.clipping import clip_grad_norm_, group_by_mesh
from trainyard_torch.parallel.context_parallel import context_parallel
from trainyard_torch.parallel.data_parallel import replicate
from trainyard_torch.parallel.fully_sharded import shard
from trainyard_torch.parallel.gradients import gradient_sync
from trainyard_torch.parallel.meta_device import initialize_parameters
from trainyard_torch.parallel.pipeline import Pipeline, pipeline_stages
from trainyard_torch.parallel.tensor_parallel import tensor_parallel

__all__ = [
    "Pipeline",
    "checkpoint_activations",
    "clip_grad_norm_",
    "context_parallel",
    "gradient_sync",
    "group_by_mesh",
    "initialize_parameters",
    "pipeline_stages",
    "replicate",
    "shard",
    "tensor_parallel",
]
