"""Data in the same order at any number of processes, from where a run stood.

`loader` and `processes` are imported by their own names: what is here needs no torch.
"""

from trainyard_torch.data.batches import Batches, Member, MicroBatch
from trainyard_torch.data.disk import Disk
from trainyard_torch.data.order import Order
from trainyard_torch.data.reads import Patience, ReadError
from trainyard_torch.data.records import Records, write_records
from trainyard_torch.data.sources import BlockSource, Reading, Source
from trainyard_torch.data.tokens import token_file

__all__ = [
    "Batches",
    "BlockSource",
    "Disk",
    "Member",
    "MicroBatch",
    "Order",
    "Patience",
    "ReadError",
    "Reading",
    "Records",
    "Source",
    "token_file",
    "write_records",
]
