"""Training on a cluster with stock PyTorch.

All public names are here. Each is imported when it is asked for: a program that uses one part needs the libraries of that part alone.
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
    from trainyard_torch.checkpoint.restoring import CheckpointError, NoneWholeError
    from trainyard_torch.checkpoint.state import Trained
    from trainyard_torch.checkpoint.store import Store, StoreError
    from trainyard_torch.context import SAVED, Training, start
    from trainyard_torch.data.batches import Batches, Member, MicroBatch
    from trainyard_torch.data.order import Order
    from trainyard_torch.mesh import Parallelism
    from trainyard_torch.place import Place

_WHERE = {
    "checkpoint.checkpoints": ("Checkpoints",),
    "checkpoint.history": ("LeftBehindError",),
    "checkpoint.interval": ("Due",),
    "checkpoint.lineage": ("Incarnation", "Keep"),
    "checkpoint.manifest": ("Manifest",),
    "checkpoint.pace": ("Plan", "Tier"),
    "checkpoint.restoring": ("CheckpointError", "NoneWholeError"),
    "checkpoint.state": ("Trained",),
    "checkpoint.store": ("Store", "StoreError"),
    "data.batches": ("Batches", "Member", "MicroBatch"),
    "context": ("SAVED", "Training", "start"),
    "data.order": ("Order",),
    "mesh": ("Parallelism",),
    "place": ("Place",),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "SAVED",
    "Batches",
    "CheckpointError",
    "Checkpoints",
    "Due",
    "Incarnation",
    "Keep",
    "LeftBehindError",
    "Manifest",
    "Member",
    "MicroBatch",
    "NoneWholeError",
    "Order",
    "Parallelism",
    "Place",
    "Plan",
    "Store",
    "StoreError",
    "Tier",
    "Trained",
    "Training",
    "start",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"trainyard_torch has no {name}: it has {', '.join(__all__)}")
    return getattr(import_module(f"trainyard_torch.{_MODULES[name]}"), name)
