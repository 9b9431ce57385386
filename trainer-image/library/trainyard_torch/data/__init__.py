"""Data in the same order at any number of processes, from where a run stood."""

from trainyard_torch.data.batches import Batches, Member, MicroBatch
from trainyard_torch.data.order import Order

__all__ = ["Batches", "Member", "MicroBatch", "Order"]
