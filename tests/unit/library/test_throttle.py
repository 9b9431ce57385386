from functools import partial
from itertools import pairwise

import pytest

from trainyard_torch.throttle import MAX_SKIPPED_STEPS, Throttle


class Training:
    """Steps of some length, and what all of the processes agree on: the most that one of them requests."""

    def __init__(self, *seconds: float) -> None:
        self.now = [0.0] * len(seconds)
        self._seconds = seconds
        self._all = [Throttle(0.1, partial(self._clock, rank)) for rank in range(len(seconds))]

    def _clock(self, rank: int) -> float:
        return self.now[rank]

    def asked(self, steps: int) -> list[int]:
        """The steps after which they have asked."""
        found = []
        for step in range(steps):
            self.now = [now + seconds for now, seconds in zip(self.now, self._seconds, strict=True)]
            due = [each.due() for each in self._all]
            assert len(set(due)) == 1, "one waits for another that does not ask"
            if due[0]:
                found.append(step)
                pause = max(each.proposal() for each in self._all)
                for each in self._all:
                    each.agree(pause)
        return found


@pytest.mark.parametrize(
    ("seconds", "between"),
    [(30.0, 1), (0.09, 1), (0.045, 2), (0.018, 5), (0.001, MAX_SKIPPED_STEPS + 1)],
    ids=["minutes", "a tenth", "half of it", "a fifth", "a millisecond"],
)
def test_about_ten_times_a_second(seconds: float, between: int) -> None:
    asked = Training(seconds).asked(200)
    assert {later - earlier for earlier, later in pairwise(asked[2:])} == {between}


def test_ranks_with_different_clocks_skip_the_same() -> None:
    asked = Training(0.02, 0.021, 0.001).asked(200)
    assert len(asked) < 30


def test_steps_that_become_long_are_asked_after_soon() -> None:
    training = Training(0.001)
    training.asked(100)
    training._seconds = (5.0,)
    asked = training.asked(60)
    assert asked[0] <= MAX_SKIPPED_STEPS
    assert asked[-10:] == [*range(50, 60)]
