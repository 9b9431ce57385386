"""Training on a cluster with stock PyTorch.

What programs use is here by name. Each name is imported when it is asked for: a program that uses one part needs the libraries of that
part alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainyard_torch.checkpoint.checkpoints import Checkpoints
    from trainyard_torch.checkpoint.history import LeftBehindError
    from trainyard_torch.checkpoint.interval import Due
    from trainyard_torch.checkpoint.lineage import Incarnation, Keep
    from trainyard_torch.checkpoint.manifest import Manifest
    from trainyard_torch.checkpoint.pace import Plan, Tier
    from trainyard_torch.checkpoint.restoring import CheckpointError, NoneWholeError, NotStoredError
    from trainyard_torch.checkpoint.store import Store, StoreError
    from trainyard_torch.checkpoint.trained import Trained
    from trainyard_torch.communication.averaging import hierarchical, local_sgd
    from trainyard_torch.communication.compression import compress
    from trainyard_torch.communication.diloco import DiLoCo
    from trainyard_torch.communication.island import IslandState, join
    from trainyard_torch.communication.powersgd import PowerSGD
    from trainyard_torch.compiling import compiled
    from trainyard_torch.context import SAVED, Training, start
    from trainyard_torch.data.batches import Batches, Member, MicroBatch
    from trainyard_torch.data.disk import Disk
    from trainyard_torch.data.evaluation import Evaluation
    from trainyard_torch.data.loader import Loader
    from trainyard_torch.data.order import Order
    from trainyard_torch.data.processes import Steps
    from trainyard_torch.data.records import Records, write_records
    from trainyard_torch.data.tokens import token_file
    from trainyard_torch.export.exporting import export_model, read_record
    from trainyard_torch.export.record import About, ExportError
    from trainyard_torch.export.weights import load_weights
    from trainyard_torch.loop import Loop, Step
    from trainyard_torch.mesh import Parallelism, member, submesh
    from trainyard_torch.optim.lamb import Lamb
    from trainyard_torch.optim.lars import Lars
    from trainyard_torch.optim.schedule import Schedule
    from trainyard_torch.parallel import (
        Pipeline,
        by_mesh,
        clip_gradients,
        replicate,
        shard,
        split_sequences,
        split_tensors,
        stages,
        synchronising,
    )
    from trainyard_torch.place import Place
    from trainyard_torch.precision import Precision
    from trainyard_torch.tracking.mlflow import MLflow
    from trainyard_torch.tracking.tensorboard import TensorBoard
    from trainyard_torch.tracking.tracking import Tracking
    from trainyard_torch.watch.profile import Capture
    from trainyard_torch.watch.watch import Watch

__version__ = "0.1.0"

_WHERE = {
    "checkpoint.checkpoints": ("Checkpoints",),
    "checkpoint.history": ("LeftBehindError",),
    "checkpoint.interval": ("Due",),
    "checkpoint.lineage": ("Incarnation", "Keep"),
    "checkpoint.manifest": ("Manifest",),
    "checkpoint.pace": ("Plan", "Tier"),
    "checkpoint.restoring": ("CheckpointError", "NoneWholeError", "NotStoredError"),
    "checkpoint.store": ("Store", "StoreError"),
    "checkpoint.trained": ("Trained",),
    "communication.averaging": ("hierarchical", "local_sgd"),
    "communication.compression": ("compress",),
    "communication.diloco": ("DiLoCo",),
    "communication.island": ("IslandState", "join"),
    "communication.powersgd": ("PowerSGD",),
    "compiling": ("compiled",),
    "context": ("SAVED", "Training", "start"),
    "data.batches": ("Batches", "Member", "MicroBatch"),
    "data.disk": ("Disk",),
    "data.evaluation": ("Evaluation",),
    "data.loader": ("Loader",),
    "data.order": ("Order",),
    "data.processes": ("Steps",),
    "data.records": ("Records", "write_records"),
    "data.tokens": ("token_file",),
    "export.exporting": ("export_model", "read_record"),
    "export.record": ("About", "ExportError"),
    "export.weights": ("load_weights",),
    "loop": ("Loop", "Step"),
    "mesh": ("Parallelism", "member", "submesh"),
    "optim.lamb": ("Lamb",),
    "optim.lars": ("Lars",),
    "optim.schedule": ("Schedule",),
    "parallel": (
        "Pipeline",
        "by_mesh",
        "clip_gradients",
        "replicate",
        "shard",
        "split_sequences",
        "split_tensors",
        "stages",
        "synchronising",
    ),
    "place": ("Place",),
    "precision": ("Precision",),
    "tracking.mlflow": ("MLflow",),
    "tracking.tensorboard": ("TensorBoard",),
    "tracking.tracking": ("Tracking",),
    "watch.profile": ("Capture",),
    "watch.watch": ("Watch",),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "SAVED",
    "About",
    "Batches",
    "Capture",
    "CheckpointError",
    "Checkpoints",
    "DiLoCo",
    "Disk",
    "Due",
    "Evaluation",
    "ExportError",
    "Incarnation",
    "IslandState",
    "Keep",
    "Lamb",
    "Lars",
    "LeftBehindError",
    "Loader",
    "Loop",
    "MLflow",
    "Manifest",
    "Member",
    "MicroBatch",
    "NoneWholeError",
    "NotStoredError",
    "Order",
    "Parallelism",
    "Pipeline",
    "Place",
    "Plan",
    "PowerSGD",
    "Precision",
    "Records",
    "Schedule",
    "Step",
    "Steps",
    "Store",
    "StoreError",
    "TensorBoard",
    "Tier",
    "Tracking",
    "Trained",
    "Training",
    "Watch",
    "by_mesh",
    "clip_gradients",
    "compiled",
    "compress",
    "export_model",
    "hierarchical",
    "join",
    "load_weights",
    "local_sgd",
    "member",
    "read_record",
    "replicate",
    "shard",
    "split_sequences",
    "split_tensors",
    "stages",
    "start",
    "submesh",
    "synchronising",
    "token_file",
    "write_records",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"trainyard_torch has no {name}: it has {', '.join(__all__)}")
    return getattr(import_module(f"trainyard_torch.{_MODULES[name]}"), name)
