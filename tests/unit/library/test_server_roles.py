from collections.abc import Callable

import pytest
from hypothesis import given, settings, strategies as st

from trainyard_torch.server import Roles, may_apply, shares


def test_the_last_ones_serve() -> None:
    roles = Roles(5, 2)
    assert [roles.name(rank) for rank in range(5)] == ["trainer-0", "trainer-1", "trainer-2", "server-0", "server-1"]
    assert (roles.trainers, [roles.serves(rank) for rank in range(5)]) == (3, [False] * 3 + [True] * 2)


@given(st.dictionaries(st.text(min_size=1), st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 30))
@settings(deadline=None)
def test_each_parameter_has_one_evenly_loaded_server(sizes: dict[str, int], servers: int) -> None:
    servers = min(servers, len(sizes))
    held = shares(sizes, servers)
    assert sorted(name for names in held for name in names) == sorted(sizes)
    assert all(held)
    loads = [sum(max(1, sizes[name]) for name in names) for names in held]
    assert max(loads) - min(loads) <= max(1, *sizes.values())
    assert shares(dict(reversed(sizes.items())), servers) == held


@given(st.integers(1, 6), st.integers(0, 4), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=80))
@settings(deadline=None)
def test_staleness_is_bounded_without_deadlock(trainers: int, slack: int, acts: list[tuple[int, bool]]) -> None:
    """Trainers push, or pull again, in any order; a push that may not be applied waits."""
    bound, version, has = trainers - 1 + slack, 0, [0] * trainers
    waiting: set[int] = set()
    for trainer, pulls in [(trainer % trainers, pulls) for trainer, pulls in acts]:
        if trainer in waiting:
            continue
        if pulls:
            has[trainer] = version
        else:
            waiting.add(trainer)
        moved = True
        while moved:
            moved = False
            for each in sorted(waiting, key=lambda each: has[each]):
                if may_apply(version, [has[other] for other in range(trainers) if other != each], bound):
                    assert version - has[each] <= bound
                    version += 1
                    has[each], moved = version, True
                    waiting.remove(each)
                    break
        assert len(waiting) < trainers, "all wait, and none can go on"


def test_smallest_bound_is_the_number_of_others() -> None:
    assert may_apply(0, [0, 0], 2)
    assert not may_apply(0, [0, 0], 1)
    assert not may_apply(5, [3], 2)
    assert may_apply(5, [3], 3)
    assert may_apply(10**6, [], 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Roles(2, 2), "servers must be from 1 to 1, as there are 2 processes"),
        (lambda: Roles(2, 0), "servers must be from 1 to 1"),
        (lambda: Roles(3).name(3), "rank must be from 0 to 2, got 3"),
        (lambda: shares({"a": 1}, 2), "servers must be from 1 to 1, the number of parameters"),
    ],
)
def test_roles_that_make_no_sense(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
