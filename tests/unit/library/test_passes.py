import numpy as np
from hypothesis import given, strategies as st

from trainyard_torch.data.batches import Member
from trainyard_torch.data.passes import length, turns


@given(size=st.integers(1, 200), batch=st.integers(1, 30), world=st.integers(1, 9))
def test_each_sample_once_and_as_many_batches_for_all(size: int, batch: int, world: int) -> None:
    every = [list(turns(size, batch, Member(rank, world))) for rank in range(world)]
    assert {len(mine) for mine in every} == {length(size, batch, world)}
    counted = [turn.samples for mine in every for turn in mine if turn.counted]
    assert np.concatenate(counted).tolist() == list(range(size))
    for mine in every:
        full = [turn.counted for turn in mine]
        assert all(turn.counted in {0, len(turn.samples)} for turn in mine)
        assert all(turn.samples.size and turn.samples.max() < size for turn in mine)
        # All but the last two are full: of two processes one may have a batch less than the other.
        assert full[:-2] == [batch] * (len(full) - len(full[-2:]))


def test_the_last_batch_is_smaller() -> None:
    mine = list(turns(11, 4, Member(0, 1)))
    assert [turn.samples.tolist() for turn in mine] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert [turn.counted for turn in turns(3, 4, Member(1, 4))] == [1]
    assert [turn.counted for turn in turns(3, 4, Member(0, 4))] == [0], "it takes part for the others' sake"
