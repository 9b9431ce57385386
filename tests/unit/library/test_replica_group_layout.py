import pytest
from hypothesis import given, strategies as st

from trainyard_torch.communication.replica_group_layout import ReplicaGroupLayout, checked


@given(size=st.integers(1, 20), count=st.integers(1, 20))
def test_process_has_one_replica_group_and_one_row(size: int, count: int) -> None:
    islands = ReplicaGroupLayout(size * count, count)
    for groups, length in ((islands.intra_ranks, size), (islands.inter_ranks, count)):
        assert sorted(rank for group in groups for rank in group) == list(range(size * count))
        assert {len(group) for group in groups} == {length}
    for number, group in enumerate(islands.intra_ranks):
        assert {islands.of(rank) for rank in group} == {number}
    for group in islands.inter_ranks:
        assert [islands.of(rank) for rank in group] == list(range(count))


def test_four_processes_on_two_islands() -> None:
    islands = ReplicaGroupLayout(4, 2)
    assert (islands.intra_ranks, islands.inter_ranks) == ([[0, 1], [2, 3]], [[0, 2], [1, 3]])


@pytest.mark.parametrize(
    ("world_size", "count", "message"), [(4, 0, "from 1 to 4"), (4, 5, "not 5"), (6, 4, "divides 6")]
)
def test_islands_that_cannot_be(world_size: int, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplicaGroupLayout(world_size, count)


def test_levels_in_any_order() -> None:
    assert list(checked({16: 64, 4: 8}, ReplicaGroupLayout(64, 16)).items()) == [(4, 8), (16, 64)]
    assert checked({4: 8}, ReplicaGroupLayout(8, 1)) == {4: 8}


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({}, "one entry at least"),
        ({0: 8}, "positive numbers, and has 0: 8"),
        ({4: 4, 6: 8}, "6 steps after 4"),
        ({4: 3, 8: 8}, "groups of 3 processes above groups of 2"),
        ({4: 2, 8: 8}, "groups of 2 processes above groups of 2"),
        ({4: 8, 8: 4}, "groups of 4 processes above groups of 8"),
        ({4: 4}, "must be all 8 processes, got 4"),
    ],
)
def test_levels_that_cannot_be(levels: dict[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked(levels, ReplicaGroupLayout(8, 4))
