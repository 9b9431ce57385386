"""`python -m dev.benchmarks.training.plans`: measure in one process how long rank 0 plans a checkpoint of many ranks.

The model has 80 layers and 723 parameters under FSDP2 with AdamW. Each rank has a part of each parameter and of its two moments. No tensor
exists. The program prints a line of JSON for each of three kinds of plan. In the first, each parameter has the settings of the optimizer,
as torch stores them. In the second, each group has them once. The third is a second save, which reuses its plan.
"""

import argparse
import gc
import json
import pickle
import sys
import time
from collections.abc import Iterator
from typing import Final

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from trainyard_torch.checkpoint.save_planner import SavePlanner

REPEATS: Final = 5
LAYERS: Final = 80
ROWS: Final = 8192
MATRICES: Final = ("wq", "wk", "wv", "wo", "w1", "w2", "w3", "norm1", "norm2")
NAMES: Final = (
    "embedding",
    *(f"layers.{layer}.{name}.weight" for layer in range(LAYERS) for name in MATRICES),
    "norm",
    "output",
)
SETTINGS: Final = (
    *("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"),
    *("foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay", "initial_lr"),
)


def shared_items(*, per_parameter: bool) -> list[WriteItem]:
    """Return what all ranks have alike: the step counter of each parameter, and the settings."""
    scalar = TensorWriteData(
        ChunkStorageMetadata(torch.Size([]), torch.Size([])), TensorProperties(dtype=torch.float32), torch.Size([])
    )
    steps = [
        WriteItem(MetadataIndex(f"optimizer.state.{name}.step", torch.Size([])), WriteItemType.TENSOR, scalar)
        for name in NAMES
    ]
    keys = (
        [f"optimizer.param_groups.{name}.{setting}" for name in NAMES for setting in SETTINGS]
        if per_parameter
        else [f"optimizer.group_settings.{NAMES[0]}"]
    )
    return steps + [WriteItem(MetadataIndex(key), WriteItemType.BYTE_IO) for key in keys]


def parts(rank: int, ranks: int) -> Iterator[WriteItem]:
    """Yield the rank's parts of parameters and moments."""
    rows = ROWS // ranks
    for name in NAMES:
        for key in (f"model.{name}", f"optimizer.state.{name}.exp_avg", f"optimizer.state.{name}.exp_avg_sq"):
            offset = torch.Size([rank * rows, 0])
            chunk = ChunkStorageMetadata(offset, torch.Size([rows, ROWS]))
            data = TensorWriteData(chunk, TensorProperties(dtype=torch.float32), torch.Size([rows * ranks, ROWS]))
            yield WriteItem(MetadataIndex(key, offset), WriteItemType.SHARD, data)


def plans(ranks: int, *, per_parameter: bool) -> list[SavePlan]:
    """Return the local plans of all ranks. Entries that are alike are one object: those of 512 ranks would not fit into memory."""
    shared = shared_items(per_parameter=per_parameter)
    mappings = {item.index.fqn: (item.index.fqn,) for item in shared}
    return [SavePlan([*parts(rank, ranks), *shared], planner_data=mappings) for rank in range(ranks)]


def measured(planner: DefaultSavePlanner, local: list[SavePlan]) -> dict[str, float]:
    """Return the sizes of the plans, and the seconds of processor time that rank 0 spends on them."""
    entries, pickled = sum(len(plan.items) for plan in local), pickle.dumps(local[0])
    # The plans of all ranks are in memory: a full collection would take as long as many of them.
    gc.freeze()
    began = time.process_time()
    for _ in range(REPEATS):
        pickle.loads(pickled)  # noqa: S301 - made above
    unpickling = (time.process_time() - began) / REPEATS
    began = time.process_time()
    planner.create_global_plan(local)
    return {
        "entries": entries,
        "megabytes of all plans": round(len(local) * len(pickled) / 1e6, 2),
        "seconds to unpickle all plans": round(len(local) * unpickling, 2),
        "seconds of create_global_plan": round(time.process_time() - began, 2),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=512)
    ranks = parser.parse_args().ranks

    def report(kind: str, figures: dict[str, float]) -> None:
        sys.stdout.write(json.dumps({"plans": kind, "ranks": ranks, **figures}) + "\n")
        sys.stdout.flush()

    report(
        "settings per parameter",
        measured(DefaultSavePlanner(dedup_save_to_lowest_rank=True), plans(ranks, per_parameter=True)),
    )
    planner = SavePlanner()
    report("settings per group", measured(planner, plans(ranks, per_parameter=False)))
    planner.reuse = True
    report("reused", measured(planner, [SavePlan([]) for _ in range(ranks)]))


if __name__ == "__main__":
    main()
