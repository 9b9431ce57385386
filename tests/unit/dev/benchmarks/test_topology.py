"""The benchmark of topology counts the traffic that it says it counts."""

from collections import Counter
from random import Random

import pytest

from dev.benchmarks import topology
from dev.benchmarks.topology import DATA, GPUS, LINKS, PIPELINE, TENSOR, at, measure, placement, replaced, traffic


def test_each_rank_has_its_links() -> None:
    count = Counter(link.kind for link in LINKS)
    assert count == {"tensor": GPUS, "data": GPUS, "pipeline": GPUS // PIPELINE * (PIPELINE - 1)}
    assert {link.receiver // TENSOR - link.sender // TENSOR for link in LINKS if link.kind == "tensor"} == {0}
    rings = {(link.receiver - link.sender) % GPUS for link in LINKS if link.kind == "data"}
    assert rings == {TENSOR, GPUS - (DATA - 1) * TENSOR}


def test_traffic_within_a_node_crosses_nothing() -> None:
    one = [at(0)] * GPUS
    found = traffic(one, range(GPUS))
    assert (found.between_nodes, found.between_racks) == (0, 0)


def test_each_change_of_rack_is_counted() -> None:
    """Two racks, each with the half of all ranks in a row: two links of each data ring cross, and no tensor parallel one."""
    halves = [at(0) if rank % (GPUS // PIPELINE) < GPUS // PIPELINE // 2 else at(16) for rank in range(GPUS)]
    found = traffic(halves, range(GPUS))
    size = next(link.size for link in LINKS if link.kind == "data")
    assert (found.tensor, found.pipeline) == (0, 0)
    assert found.data == pytest.approx(2 * PIPELINE * TENSOR * size / topology.GIB)


def test_placement_fills_nodes_with_workers() -> None:
    places = placement(Random(1), 2)  # noqa: S311 - a placement, no secret
    assert {*Counter(places).values()} == {4}
    later = replaced(Random(1), placement(Random(1), 8), 0.05)  # noqa: S311 - as above
    assert {*Counter(later).values()} == {1}


@pytest.mark.parametrize("gpus", topology.PODS)
def test_ranks_by_placement_cross_fewer_racks(gpus: int) -> None:
    index, by_placement, *later = measure(gpus)
    assert by_placement.tensor == by_placement.between_nodes == 0, "each tensor parallel group has a node"
    assert by_placement.ratio < 0.2
    ratios = [row.ratio for row in (by_placement, *later)]
    assert ratios == sorted(ratios)
    assert ratios[-1] < 0.5 < index.ratio
