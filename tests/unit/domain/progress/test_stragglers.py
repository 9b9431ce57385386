"""Which ranks count as stragglers, for how long, and how they are reported."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, job, stored
from trainyard.api.progress import MAX_STRAGGLERS, Straggler
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, TrainingJobStatus
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import RankProgress, WorkerReport

Own = Mapping[int, float | None] | Sequence[float | None]
EVEN = [0.2, 0.2, 0.2, 0.2]
LATE = [0.2, 0.2, 0.42, 0.2]


class Training:
    """A job with one rank per reporting worker, reconciled now and then."""

    def __init__(self, ranks: int = 4, each: int = 1) -> None:
        self.scene = job(ranks // each, processesPerReplica=each).running()
        self.each, self.seconds = each, 0.0

    @property
    def status(self) -> TrainingJobStatus:
        return self.scene.status

    def look(self, *ranks: RankProgress, after: float = 0) -> Plan:
        """Reconcile so many seconds later, after these reports."""
        self.seconds += after
        reports = [
            WorkerReport(self.status.attempt, index, tuple(r for r in ranks if r.rank // self.each == index))
            for index in range(self.scene.spec.replicas)
        ]
        now = NOW + timedelta(seconds=self.seconds)
        made = plan(replace(self.scene.snapshot, reports=reports), now)
        assert made.status == stored(made.status)
        self.scene = replace(self.scene, status=made.status)
        again = plan(replace(self.scene.snapshot, reports=reports), now)
        assert (again.status, again.events) == (made.status, []), "what is stored is not decided again"
        return made

    def report(self, own: Own, after: float = 0, phases: Mapping[int, str] | None = None) -> Plan:
        """Reconcile after each rank reported its own seconds; all have the same step time."""
        reported = own.items() if isinstance(own, Mapping) else enumerate(own)
        phase = phases or {}
        ranks = (RankProgress(r, 9, phase.get(r, "train"), step_seconds=0.5, compute_seconds=s) for r, s in reported)
        return self.look(*ranks, after=after)

    @property
    def straggling(self) -> bool:
        return self.status.holds(C.STRAGGLING)

    @property
    def message(self) -> str:
        condition = self.status.condition(C.STRAGGLING)
        return condition.message if condition else ""

    @property
    def named(self) -> list[int]:
        return [each.rank for each in self.status.stragglers if each.confirmed]


def straggling(own: Own = LATE) -> Training:
    """A job in which a rank has been slow for a minute."""
    training = Training(len(own))
    training.report(own)
    training.report(own, after=60)
    assert training.straggling
    return training


def test_straggler_is_reported_once_after_a_minute() -> None:
    training = Training()
    assert training.report(LATE).events == []
    assert training.report(LATE, after=59).events == []
    assert not training.straggling
    (event,) = training.report(LATE, after=1).events
    reported = "rank 2 (pod train-worker-2-1 on node2) takes 0.42 s per step by itself, 2.1 times the median of 4 ranks"
    assert (event.type, event.reason, event.note, training.message) == (
        "Warning",
        "StragglersDetected",
        reported,
        reported,
    )
    assert training.report(LATE, after=600).events == []
    (slow,) = training.status.stragglers
    assert slow == Straggler(
        rank=2, pod="train-worker-2-1", node="node2", step_seconds=0.42, factor=2.1, since=NOW, confirmed=True
    )
    assert training.status.attempt == 1, "nothing is restarted because of it"


def test_reconciles_when_the_window_ends() -> None:
    training = Training()
    assert training.report(LATE).requeue_after == 60
    assert training.report(LATE, after=45).requeue_after == 15
    assert training.report(LATE, after=15).requeue_after is None
    assert training.straggling


@pytest.mark.parametrize(
    ("ranks", "slow"),
    [
        pytest.param(EVEN, [], id="all the same"),
        pytest.param([0.2, 0.2, 0.29, 0.2], [], id="not by much"),
        pytest.param([0.2, 0.2, 0.31, 0.2], [2], id="by half"),
        pytest.param([0.2, 0.2, 0.01, 0.2], [], id="one is quicker"),
        pytest.param([0.4, 0.2, 0.2, 0.2, 0.5], [0, 4], id="two of five"),
        pytest.param([0.02, 0.02, 0.04, 0.02], [], id="twice as slow, by less than a twentieth of the step"),
        pytest.param([0.4, 0.4, 0.4, 0.2, 0.2], [], id="most are as slow: then that is the pace"),
        pytest.param([0.2, 0.6, 0.2], [1], id="three are enough"),
        pytest.param([0.2, 9.0], [], id="of two ranks, either may be normal"),
        pytest.param([9.0], [], id="one alone"),
        pytest.param([0.2, 9.0, None, None], [], id="two report own seconds; all step times are equal"),
        pytest.param([0.2, 9.0, 0.0, 0.2], [1], id="nothing is no time"),
        pytest.param([1e100, 5e-324, 5e-324], [0], id="numbers beyond all measure"),
    ],
)
def test_slow_ranks(ranks: Own, slow: list[int]) -> None:
    training = Training(len(ranks))
    training.report(ranks)
    training.report(ranks, after=60)
    assert (training.named, training.straggling) == (slow, bool(slow))


def test_compares_step_times_without_compute_seconds() -> None:
    training = Training()
    ranks = [RankProgress(rank, 9, "train", step_seconds=seconds) for rank, seconds in enumerate(LATE)]
    training.look(*ranks)
    training.look(*ranks, after=60)
    assert training.message.endswith("takes 0.42 s per step, 2.1 times the median of 4 ranks")


def test_several_are_counted_and_the_worst_is_named() -> None:
    training = straggling([0.2, 0.4, 0.2, 0.6, 0.2])
    assert training.named == [1, 3]
    assert training.message.startswith("2 ranks are slower than the others; rank 3 (pod train-worker-3-1 on node3) ")


def test_straggler_names_pod_among_several_ranks() -> None:
    training = Training(8, each=2)
    for after in (0, 60):
        training.report({rank: 0.5 if rank == 5 else 0.2 for rank in range(8)}, after=after)
    assert training.message.startswith("rank 5 (pod train-worker-2-1 on node2) ")


def test_single_slow_step_starts_no_window() -> None:
    training = Training()
    for _ in range(10):
        training.report(LATE, after=30)
        training.report(EVEN, after=20)
        assert training.status.stragglers == []
    assert training.status.condition(C.STRAGGLING) is None, "never reported, so never cleared"


def test_straggler_clears_below_lower_threshold() -> None:
    training = straggling()
    training.report([0.2, 0.2, 0.27, 0.2], after=10)
    assert training.straggling, "between the two it stays what it was"
    assert "1.4 times" in training.message
    assert training.report([0.2, 0.2, 0.25, 0.2], after=10).events == []
    assert (training.straggling, training.message) == (False, "no rank is slower than the others")
    training.report([0.2, 0.2, 0.27, 0.2], after=10)
    assert training.status.stragglers == []
    training.report(LATE, after=10)
    assert training.report(LATE, after=60).events != [], "slow again, reported again"


def test_another_one_joins() -> None:
    training = straggling([*LATE, 0.2])
    training.report([0.2, 0.5, 0.42, 0.2, 0.2], after=10)
    assert training.named == [2]
    assert training.report([0.2, 0.5, 0.42, 0.2, 0.2], after=60).events == []
    assert training.message.startswith("2 ranks are slower than the others; rank 1 ")


def test_other_phases_are_no_steps_and_no_recovery() -> None:
    training = Training()
    busy = dict.fromkeys(range(4), "checkpoint")
    training.report(LATE, after=1)
    training.report(LATE, after=100, phases=busy)
    assert (training.named, len(training.status.stragglers)) == ([], 1), "not measured, so not confirmed"
    training.report(LATE, after=1)
    assert training.named == [2]
    training.report(EVEN, after=10, phases={2: "evaluate"})
    assert (training.named, training.straggling) == ([2], True)


def test_a_rank_that_evaluates_alone_is_not_slow() -> None:
    training = Training()
    for _ in range(4):
        training.report(LATE, after=60, phases={2: "evaluate"})
    assert training.status.stragglers == []


def test_silent_rank_stays_straggler() -> None:
    """A new leader has the stored status, and receives the reports one after the other."""
    training = straggling()
    training.look(after=60)
    training.report({0: 0.2, 1: 0.2}, after=1)
    training.report({0: 0.2, 1: 0.2, 3: 0.2}, after=1)
    assert (training.named, training.straggling) == ([2], True)
    assert training.message.startswith("rank 2 ")


def test_number_of_stragglers_is_bounded() -> None:
    own = [0.2] * 40 + [0.5] * 30
    training = straggling(own)
    assert len(training.named) == MAX_STRAGGLERS
    first = training.named
    training.report([0.2] * 40 + [0.9] * 30, after=10)
    assert training.named == first


def test_clock_set_back_restarts_window() -> None:
    training = Training()
    training.report(LATE, after=1000)
    training.report(LATE, after=-1000)
    assert training.report(LATE, after=59).requeue_after == 1
    training.report(LATE, after=1)
    assert training.straggling


ENDS: list[Any] = [
    pytest.param(lambda scene: scene.failed(1), Reason.WORKER_FAILED, id="a new attempt"),
    pytest.param(lambda scene: scene.with_spec(replicas=3), Reason.RESIZED, id="a new size"),
    pytest.param(lambda scene: scene.with_spec(lifecycle={"suspend": True}), Reason.SUSPENDED, id="a suspension"),
    pytest.param(lambda scene: scene.succeeded(0, 1, 2, 3), Reason.WORKERS_SUCCEEDED, id="the end"),
    pytest.param(lambda scene: scene.failed(1, exit_code=127), Reason.NON_RETRYABLE, id="a failure for good"),
]


@pytest.mark.parametrize(("end", "reason"), ENDS)
def test_it_ends_with_the_attempt(end: Any, reason: Reason) -> None:
    training = straggling()
    scene: Scene = end(training.scene)
    status = plan(scene.snapshot, NOW).status
    condition = status.condition(C.STRAGGLING)
    assert condition is not None
    assert (condition.status, condition.reason, status.stragglers) == ("False", reason, [])


def test_reports_of_earlier_attempt_do_not_count() -> None:
    scene = job(4).running(attempt=2)
    ranks = [WorkerReport(1, r, (RankProgress(r, 9, "train", compute_seconds=s),)) for r, s in enumerate(LATE)]
    assert plan(replace(scene.snapshot, reports=ranks), NOW).status.stragglers == []


def test_latest_possible_time_is_handled() -> None:
    far = Straggler(rank=0, pod="x", step_seconds=1, factor=2, since=datetime.max.replace(tzinfo=UTC, microsecond=0))
    assert plan(job(1).running().with_status(stragglers=[far]).snapshot, NOW).status.attempt == 1


def test_unnoticeable_waits_for_data_are_no_reason() -> None:
    """With FSDP, own seconds are the wait for data: microseconds of a step of half a second."""
    training = Training()
    for after in (0, 60):
        training.report([80e-6, 80e-6, 0.02, 80e-6], after=after)
    assert training.status.stragglers == []
    for after in (0, 60):
        training.report([80e-6, 80e-6, 0.03, 80e-6], after=after)
    assert training.named == [2]


def with_gemm(gemm: Sequence[float | None], own: float | None = None) -> list[RankProgress]:
    """Ranks that all have the same step time, and whose GPUs take so long for the same products."""
    return [
        RankProgress(
            rank,
            9,
            "train",
            step_seconds=0.5,
            compute_seconds=own,
            measured={} if seconds is None else {"gemm_seconds": seconds},
        )
        for rank, seconds in enumerate(gemm)
    ]


@pytest.mark.parametrize("own", [None, 0.001], ids=["a pipeline", "FSDP"])
def test_slow_gpu_is_named_where_passes_wait(own: float | None) -> None:
    training = Training()
    for after in (0, 60):
        training.look(*with_gemm([0.08, 0.081, 0.164, 0.079], own), after=after)
    assert training.message == (
        "rank 2 (pod train-worker-2-1 on node2) has a slow GPU: it takes 0.16 s for 50 TFLOP of matrix products, "
        "2 times the median of 4 ranks"
    )
    (slow,) = training.status.stragglers
    assert (slow.step_seconds, slow.gemm_seconds) == (own or 0.5, 0.16)
    training.look(*with_gemm([0.08, 0.081, 0.08, 0.079], own), after=1)
    assert (training.straggling, training.named) == (False, [])


@pytest.mark.parametrize("gemm", [[0.08, 0.16, None, None], [0.08, 0.08, 0.11, 0.08]], ids=["two ranks", "not by much"])
def test_gpus_that_are_not_slow(gemm: Sequence[float | None]) -> None:
    training = Training()
    for after in (0, 60):
        training.look(*with_gemm(gemm), after=after)
    assert training.status.stragglers == []


def test_the_larger_factor_is_reported() -> None:
    training = Training()
    ranks = [
        replace(rank, compute_seconds=0.4 if rank.rank == 2 else 0.1) for rank in with_gemm([0.08, 0.08, 0.16, 0.08])
    ]
    for after in (0, 60):
        training.look(*ranks, after=after)
    assert training.message.endswith("takes 0.4 s per step by itself, 4 times the median of 4 ranks")
