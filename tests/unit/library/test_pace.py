from trainyard_torch.checkpoint.interval import Due
from trainyard_torch.checkpoint.pace import Pace, Plan, Tier

M, S = Tier.MEMORY, Tier.STORE


def test_by_the_number_of_the_step() -> None:
    pace = Pace(Plan(store=Due(steps=4), memory=Due(steps=2)), 0)
    assert [pace.at(step) for step in range(1, 9)] == [None, M, None, S, None, M, None, S]
    assert pace.by(10**6) is None


def test_by_the_time_each_tier_has_its_own() -> None:
    pace = Pace(Plan(store=Due(seconds=100), memory=Due(seconds=30)), 1000)
    assert [pace.by(1000 + elapsed) for elapsed in (29, 30, 99, 100)] == [None, M, M, S]
    pace.made(M, 7, began=1090, now=1092)
    assert (pace.step, pace.stall, pace.since(1095)) == (7, 2, 3)
    assert [pace.by(time) for time in (1099, 1100)] == [None, S], "what is in memory is not stored"
    pace.made(S, 8, began=1100, now=1101)
    assert [pace.by(time) for time in (1130, 1131, 1200, 1201)] == [None, M, M, S], "what is stored is in memory"


def test_without_memory() -> None:
    pace = Pace(Plan(store=Due(seconds=100)), 0)
    assert [pace.by(time) for time in (99, 100)] == [None, S]


def test_by_cost_and_failures() -> None:
    calm, storm = Pace(Plan(), 0), Pace(Plan(), 0)
    for pace, failures in ((calm, 2), (storm, 200)):
        pace.began(86400, failures, 0)
        assert [pace.by(time) for time in (9, 10)] == [None, S], "the first one shows what it costs"
        pace.made(S, 1, began=10, now=10.5)
    time = next(time for time in range(10, 4000) if storm.by(time))
    assert calm.by(time) is None
