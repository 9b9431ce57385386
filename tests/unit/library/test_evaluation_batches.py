import numpy as np
from hypothesis import given, strategies as st

from trainyard_torch.data.batches import DataShard
from trainyard_torch.data.evaluation_batches import evaluation_batches, length


@given(size=st.integers(1, 200), batch=st.integers(1, 30), world_size=st.integers(1, 9))
def test_each_sample_once_in_equal_batch_counts(size: int, batch: int, world_size: int) -> None:
    every = [list(evaluation_batches(size, batch, DataShard(rank, world_size))) for rank in range(world_size)]
    assert {len(mine) for mine in every} == {length(size, batch, world_size)}
    counted = [turn.samples for mine in every for turn in mine if turn.counted]
    assert np.concatenate(counted).tolist() == list(range(size))
    for mine in every:
        full = [turn.counted for turn in mine]
        assert all(turn.counted in {0, len(turn.samples)} for turn in mine)
        assert all(turn.samples.size and turn.samples.max() < size for turn in mine)
        # All but the last two are full: of two processes one may have a batch less than the other.
        assert full[:-2] == [batch] * (len(full) - len(full[-2:]))


def test_the_last_batch_is_smaller() -> None:
    mine = list(evaluation_batches(11, 4, DataShard(0, 1)))
    assert [turn.samples.tolist() for turn in mine] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert [turn.counted for turn in evaluation_batches(3, 4, DataShard(1, 4))] == [1]
    assert [turn.counted for turn in evaluation_batches(3, 4, DataShard(0, 4))] == [0], (
        "it takes part for the others' sake"
    )
