"""What a job reports of its goodput is what its logs say: twenty minutes with a fault in each, by both ways of counting."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from random import Random

import pytest

from dev.benchmarks.recovery.goodput import WITHIN_POINTS, earned
from dev.benchmarks.recovery.milestones import Life
from tests.support.jobs import NOW, job, stored
from trainyard.api.status import LastFailure, TrainingJobStatus
from trainyard.domain.progress.goodput import reported
from trainyard.domain.progress.group_progress import progress
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import RankProgress, WorkerReport

MINUTES = 20


def lives(random: Random) -> list[Life]:
    """Rank 0 of one attempt a minute. A step takes a tenth of a second or a little more, each tenth longer: it writes a checkpoint."""
    found, step = [], 0
    for minute in range(MINUTES):
        at = minute * 60 + random.choice([1.0, 4.0, 8.0, 20.0])
        life = Life(rank=0)
        while at < minute * 60 + 60:
            step += 1
            at += random.uniform(0.1, 0.12) + 0.03 * (step % 10 == 0)
            life.steps.append((step, at))
        step -= step % 10
        found.append(life)
    return found


def report_of(life: Life, at: float, attempt: int) -> WorkerReport:
    """What its agent tells at this time."""
    done = [step for step in life.steps if step[1] <= at]
    took = sorted([after[1] - before[1] for before, after in pairwise(done)][-31:])
    usual = took[len(took) // 2] if len(took) > 2 else None
    rank = RankProgress(0, done[-1][0], "train", step_seconds=usual, first=life.steps[0][0])
    return WorkerReport(attempt, 0, (rank,), NOW + timedelta(seconds=at))


@pytest.mark.parametrize("seed", range(5))
def test_both_are_within_two_points(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - a schedule, no secret
    found, status = lives(random), TrainingJobStatus().evolve(active_since=NOW)
    for attempt, life in enumerate(found, 1):
        if attempt > 1:
            step = found[attempt - 2].steps[-1][0]
            failure = LastFailure(time=NOW, attempt=attempt - 1, pod="w", pod_uid="u", reason="Error", step=step)
            status = status.evolve(attempt=attempt, last_failure=failure)
        at = life.steps[0][1] + random.uniform(0.0, 2.0)
        # The status is written every ten seconds, with a report that is up to five seconds old.
        while (at := at + 10) < life.steps[-1][1] + 5:
            report = report_of(life, min(at - random.uniform(0.0, 5.0), life.steps[-1][1]), attempt)
            snapshot = Snapshot(replace(job(1).job, status=status), reports=[report])
            seen = progress(snapshot, NOW)
            goodput = reported(snapshot, seen, NOW)
            status = stored(status.evolve(progress=seen, goodput=goodput))
    gained, again, usual = earned(found, 0, MINUTES * 60)
    assert again > 10
    assert status.goodput is not None
    assert status.goodput.ratio == pytest.approx(gained * usual / (MINUTES * 60), abs=WITHIN_POINTS / 100)
    assert status.goodput.lost_seconds.repeated == pytest.approx(again * usual, rel=0.1)
