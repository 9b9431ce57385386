"""`python -m dev.benchmarks.topology`: how much of a training's traffic crosses racks, with ranks by index and by placement.

A two-level fat tree has 36 racks of 16 nodes of 8 GPUs. A scheduler has chosen 512 of these nodes, in any order. The model is
split by 8 (tensor) and 8 (pipeline); 64 copies of it train in data parallel rings. All numbers are computed: nothing runs. Writes
build/bench/topology.json.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Final

from dev.localcluster.say import say
from trainyard.scheduling.rank_order import Place, rank_order

RACKS: Final = 36
NODES_OF_RACK: Final = 16
GPUS_OF_NODE: Final = 8
GPUS: Final = 4096
TENSOR: Final = 8
PIPELINE: Final = 8
DATA: Final = GPUS // TENSOR // PIPELINE
GIB: Final = 2**30
ACTIVATION_BYTES: Final = 4096 * 8192 * 2
"""Of a micro-batch: one sequence of 4,096 tokens, 8,192 numbers of two bytes each."""
MICRO_BATCHES: Final = 32
LAYERS_OF_STAGE: Final = 10
GRADIENT_BYTES: Final = 70 * 10**9 * 2 // (TENSOR * PIPELINE)
"""Of one rank, in a model of 70 billion parameters."""
PODS: Final = (8, 4, 2, 1)
"""GPUs of a worker."""
REPLACED: Final = (0.01, 0.05, 0.10)
"""Shares of the workers that got a new pod on another node since the group started."""
SEEDS: Final = range(5)
OUTPUT: Final = Path("build/bench/topology.json")


@dataclass(frozen=True, slots=True)
class Link:
    """Two ranks that communicate in each step, and the bytes that the first one sends to the second."""

    kind: str
    sender: int
    receiver: int
    size: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What crosses the network in a step, in GiB of all ranks together."""

    between_nodes: float
    """Of tensor parallel groups, which should stay within a node."""
    tensor: float
    """Between racks, by the kind of parallelism."""
    pipeline: float
    data: float

    @property
    def between_racks(self) -> float:
        """All of it that crosses racks."""
        return self.tensor + self.pipeline + self.data


@dataclass(frozen=True, slots=True)
class Row:
    """Workers of one size, with one order of ranks: the mean over several placements."""

    gpus_of_worker: int
    ranks_by: str
    between_nodes: float
    tensor: float
    pipeline: float
    data: float
    between_racks: float
    ratio: float
    """Of the traffic between racks to that with ranks by index."""


def _links() -> Iterator[Link]:
    """Yield all links of a step. The tensor dimension is the innermost, the pipeline the outermost: as in Megatron and `trainyard_torch`."""
    tensor = 4 * LAYERS_OF_STAGE * MICRO_BATCHES * 2 * (TENSOR - 1) / TENSOR * ACTIVATION_BYTES
    data = 2 * (DATA - 1) / DATA * GRADIENT_BYTES
    pipeline = 2 * MICRO_BATCHES * ACTIVATION_BYTES / TENSOR
    for rank in range(GPUS):
        stage, rest = divmod(rank, DATA * TENSOR)
        copy, part = divmod(rest, TENSOR)
        yield Link("tensor", rank, rank - part + (part + 1) % TENSOR, tensor)
        yield Link("data", rank, stage * DATA * TENSOR + (copy + 1) % DATA * TENSOR + part, data)
        if stage + 1 < PIPELINE:
            yield Link("pipeline", rank, rank + DATA * TENSOR, pipeline)


LINKS: Final = tuple(_links())


def placement(random: Random, gpus_of_worker: int) -> list[Place]:
    """Return the place of each worker, as a scheduler chooses it that fills nodes, and knows nothing of ranks and racks."""
    nodes = random.sample(range(RACKS * NODES_OF_RACK), GPUS // GPUS_OF_NODE)
    slots = [node for node in nodes for _ in range(GPUS_OF_NODE // gpus_of_worker)]
    random.shuffle(slots)
    return [at(node) for node in slots]


def at(node: int) -> Place:
    """Return the place of a node: its rack, and itself."""
    return f"rack{node // NODES_OF_RACK}", f"node{node}"


def replaced(random: Random, places: Sequence[Place], share: float) -> list[Place]:
    """Return the places after a share of the workers got new pods on nodes that were free."""
    used = {place[-1] for place in places}
    free = [at(node) for node in range(RACKS * NODES_OF_RACK) if f"node{node}" not in used]
    moved = random.sample(range(len(places)), min(len(free), round(share * len(places))))
    new = dict(zip(moved, random.sample(free, len(moved)), strict=True))
    return [new.get(worker, place) for worker, place in enumerate(places)]


def traffic(places: Sequence[Place], order: Sequence[int]) -> Traffic:
    """Return what crosses nodes and racks with this order of workers."""
    of_worker = GPUS // len(places)
    where = [places[order[rank // of_worker]] for rank in range(GPUS)]
    racks, between_nodes = dict.fromkeys(("tensor", "pipeline", "data"), 0.0), 0.0
    for link in LINKS:
        (rack, node), (other_rack, other_node) = where[link.sender], where[link.receiver]
        if rack != other_rack:
            racks[link.kind] += link.size / GIB
        if link.kind == "tensor" and node != other_node:
            between_nodes += link.size / GIB
    return Traffic(between_nodes, **racks)


def measure(gpus_of_worker: int) -> list[Row]:
    """Return the rows of workers of this size."""
    unit = max(1, TENSOR // gpus_of_worker)
    found: dict[str, list[Traffic]] = {}
    for seed in SEEDS:
        random = Random(seed)  # noqa: S311 - a placement, no secret
        places = placement(random, gpus_of_worker)
        by_index, by_placement = list(range(len(places))), rank_order(places, unit)
        found.setdefault("index", []).append(traffic(places, by_index))
        found.setdefault("placement", []).append(traffic(places, by_placement))
        if gpus_of_worker == GPUS_OF_NODE:
            for share in REPLACED:
                later = replaced(random, places, share)
                name = f"placement, {share:.0%} replaced since"
                found.setdefault(name, []).append(traffic(later, by_placement))
    before = _mean([each.between_racks for each in found["index"]])
    return [_row(gpus_of_worker, name, runs, before) for name, runs in found.items()]


def _row(gpus_of_worker: int, ranks_by: str, runs: Sequence[Traffic], before: float) -> Row:
    racks = _mean([each.between_racks for each in runs])
    return Row(
        gpus_of_worker,
        ranks_by,
        between_nodes=_mean([each.between_nodes for each in runs]),
        tensor=_mean([each.tensor for each in runs]),
        pipeline=_mean([each.pipeline for each in runs]),
        data=_mean([each.data for each in runs]),
        between_racks=racks,
        ratio=round(racks / before, 4),
    )


def _mean(numbers: Sequence[float]) -> float:
    return round(sum(numbers) / len(numbers), 1)


def main() -> int:
    """Compute all rows, print and write them."""
    rows = [row for gpus_of_worker in PODS for row in measure(gpus_of_worker)]
    say("| GPUs of a worker | Ranks by | tensor, between nodes | tensor | pipeline | data | between racks | ratio |")
    say("|---|---|---|---|---|---|---|---|")
    for row in rows:
        sizes = (row.between_nodes, row.tensor, row.pipeline, row.data, row.between_racks)
        say(
            f"| {row.gpus_of_worker} | {row.ranks_by} | {' | '.join(f'{size:,.0f}' for size in sizes)} | {row.ratio:.1%} |"
        )
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    say(f"wrote {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
