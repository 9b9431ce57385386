"""Load data in the same order at any number of processes, resumable at any step.

Import `loader` and `processes` from their modules: what is here needs no torch.
"""

from trainyard_torch.data.batches import Batches, DataShard, MicroBatch
from trainyard_torch.data.disk_cache import DiskCache
from trainyard_torch.data.range_reader import ReadError, RetryPolicy
from trainyard_torch.data.records import RecordDataset, write_records
from trainyard_torch.data.sample_order import SampleOrder
from trainyard_torch.data.sources import BlockSource, ReadOptions, Source
from trainyard_torch.data.tokens import token_dataset

__all__ = [
    "Batches",
    "BlockSource",
    "DataShard",
    "DiskCache",
    "MicroBatch",
    "ReadError",
    "ReadOptions",
    "RecordDataset",
    "RetryPolicy",
    "SampleOrder",
    "Source",
    "token_dataset",
    "write_records",
]
