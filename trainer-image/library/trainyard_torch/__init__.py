"""Training on a cluster with stock PyTorch.

The public names of the library. Each is imported on first use, so a program needs only the libraries of the parts that it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainyard_torch.checkpoint.checkpoints import Checkpoints
    from trainyard_torch.checkpoint.history import StaleAttemptError
    from trainyard_torch.checkpoint.interval import SaveInterval
    from trainyard_torch.checkpoint.lineage import JobAttempt, Retention
    from trainyard_torch.checkpoint.loader import CheckpointError, CheckpointSaveError, NoUsableCheckpointError
    from trainyard_torch.checkpoint.manifest import Manifest
    from trainyard_torch.checkpoint.policy import CheckpointPolicy, Tier
    from trainyard_torch.checkpoint.store import Store, StoreError
    from trainyard_torch.checkpoint.train_state import TrainState
    from trainyard_torch.communication.averaging import hierarchical_sgd, local_sgd
    from trainyard_torch.communication.compression import compress
    from trainyard_torch.communication.diloco import DiLoCo
    from trainyard_torch.communication.powersgd import PowerSGD
    from trainyard_torch.communication.replica_group import ReplicaGroupState, join_replica_group
    from trainyard_torch.compilation import compile_model
    from trainyard_torch.context import STOPPED_EXIT_CODE, Training, start
    from trainyard_torch.data.batches import Batches, DataShard, MicroBatch
    from trainyard_torch.data.disk_cache import DiskCache
    from trainyard_torch.data.evaluation import EvaluationLoader
    from trainyard_torch.data.loader import Loader
    from trainyard_torch.data.records import RecordDataset, write_records
    from trainyard_torch.data.sample_order import SampleOrder
    from trainyard_torch.data.step_dataset import StepDataset
    from trainyard_torch.data.tokens import token_dataset
    from trainyard_torch.export.exporting import export_model, read_record
    from trainyard_torch.export.from_checkpoint import export_checkpoint
    from trainyard_torch.export.record import ExportError, Provenance
    from trainyard_torch.export.weights import load_weights
    from trainyard_torch.loop import Loop, Step
    from trainyard_torch.memory_estimate import MemoryEstimate, estimate_memory
    from trainyard_torch.mesh import Parallelism, data_shard, submesh
    from trainyard_torch.monitoring.monitor import Monitor
    from trainyard_torch.monitoring.profiler import ProfilerConfig
    from trainyard_torch.non_finite import NonFiniteError, NonFinitePolicy
    from trainyard_torch.optim.lamb import LAMB
    from trainyard_torch.optim.lars import LARS
    from trainyard_torch.optim.schedule import LRSchedule
    from trainyard_torch.parallel.activation_checkpointing import checkpoint_activations
    from trainyard_torch.parallel.clipping import clip_grad_norm_, group_by_mesh
    from trainyard_torch.parallel.context_parallel import context_parallel
    from trainyard_torch.parallel.data_parallel import replicate
    from trainyard_torch.parallel.fully_sharded import shard
    from trainyard_torch.parallel.gradients import gradient_sync
    from trainyard_torch.parallel.meta_device import initialize_parameters
    from trainyard_torch.parallel.pipeline import Pipeline, pipeline_stages
    from trainyard_torch.parallel.tensor_parallel import tensor_parallel
    from trainyard_torch.precision import Precision
    from trainyard_torch.process_info import ProcessInfo
    from trainyard_torch.tracking.mlflow import MLflow
    from trainyard_torch.tracking.tensorboard import TensorBoard
    from trainyard_torch.tracking.tracking import Tracking

__version__ = "0.1.0"

_WHERE = {
    "checkpoint.checkpoints": ("Checkpoints",),
    "checkpoint.history": ("StaleAttemptError",),
    "checkpoint.interval": ("SaveInterval",),
    "checkpoint.lineage": ("JobAttempt", "Retention"),
    "checkpoint.loader": ("CheckpointError", "CheckpointSaveError", "NoUsableCheckpointError"),
    "checkpoint.manifest": ("Manifest",),
    "checkpoint.policy": ("CheckpointPolicy", "Tier"),
    "checkpoint.store": ("Store", "StoreError"),
    "checkpoint.train_state": ("TrainState",),
    "communication.averaging": ("hierarchical_sgd", "local_sgd"),
    "communication.compression": ("compress",),
    "communication.diloco": ("DiLoCo",),
    "communication.powersgd": ("PowerSGD",),
    "communication.replica_group": ("ReplicaGroupState", "join_replica_group"),
    "compilation": ("compile_model",),
    "context": ("STOPPED_EXIT_CODE", "Training", "start"),
    "data.batches": ("Batches", "DataShard", "MicroBatch"),
    "data.disk_cache": ("DiskCache",),
    "data.evaluation": ("EvaluationLoader",),
    "data.loader": ("Loader",),
    "data.records": ("RecordDataset", "write_records"),
    "data.sample_order": ("SampleOrder",),
    "data.step_dataset": ("StepDataset",),
    "data.tokens": ("token_dataset",),
    "export.exporting": ("export_model", "read_record"),
    "export.from_checkpoint": ("export_checkpoint",),
    "export.record": ("ExportError", "Provenance"),
    "export.weights": ("load_weights",),
    "loop": ("Loop", "Step"),
    "memory_estimate": ("MemoryEstimate", "estimate_memory"),
    "mesh": ("Parallelism", "data_shard", "submesh"),
    "monitoring.monitor": ("Monitor",),
    "monitoring.profiler": ("ProfilerConfig",),
    "optim.lamb": ("LAMB",),
    "optim.lars": ("LARS",),
    "optim.schedule": ("LRSchedule",),
    "parallel.activation_checkpointing": ("checkpoint_activations",),
    "parallel.clipping": ("clip_grad_norm_", "group_by_mesh"),
    "parallel.context_parallel": ("context_parallel",),
    "parallel.data_parallel": ("replicate",),
    "parallel.fully_sharded": ("shard",),
    "parallel.gradients": ("gradient_sync",),
    "parallel.meta_device": ("initialize_parameters",),
    "parallel.pipeline": ("Pipeline", "pipeline_stages"),
    "parallel.tensor_parallel": ("tensor_parallel",),
    "non_finite": ("NonFiniteError", "NonFinitePolicy"),
    "precision": ("Precision",),
    "process_info": ("ProcessInfo",),
    "tracking.mlflow": ("MLflow",),
    "tracking.tensorboard": ("TensorBoard",),
    "tracking.tracking": ("Tracking",),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "LAMB",
    "LARS",
    "STOPPED_EXIT_CODE",
    "Batches",
    "CheckpointError",
    "CheckpointPolicy",
    "CheckpointSaveError",
    "Checkpoints",
    "DataShard",
    "DiLoCo",
    "DiskCache",
    "EvaluationLoader",
    "ExportError",
    "JobAttempt",
    "LRSchedule",
    "Loader",
    "Loop",
    "MLflow",
    "Manifest",
    "MemoryEstimate",
    "MicroBatch",
    "Monitor",
    "NoUsableCheckpointError",
    "NonFiniteError",
    "NonFinitePolicy",
    "Parallelism",
    "Pipeline",
    "PowerSGD",
    "Precision",
    "ProcessInfo",
    "ProfilerConfig",
    "Provenance",
    "RecordDataset",
    "ReplicaGroupState",
    "Retention",
    "SampleOrder",
    "SaveInterval",
    "StaleAttemptError",
    "Step",
    "StepDataset",
    "Store",
    "StoreError",
    "TensorBoard",
    "Tier",
    "Tracking",
    "TrainState",
    "Training",
    "checkpoint_activations",
    "clip_grad_norm_",
    "compile_model",
    "compress",
    "context_parallel",
    "data_shard",
    "estimate_memory",
    "export_checkpoint",
    "export_model",
    "gradient_sync",
    "group_by_mesh",
    "hierarchical_sgd",
    "initialize_parameters",
    "join_replica_group",
    "load_weights",
    "local_sgd",
    "pipeline_stages",
    "read_record",
    "replicate",
    "shard",
    "start",
    "submesh",
    "tensor_parallel",
    "token_dataset",
    "write_records",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"trainyard_torch has no {name}: it has {', '.join(__all__)}")
    return getattr(import_module(f"trainyard_torch.{_MODULES[name]}"), name)
