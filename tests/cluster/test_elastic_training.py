"""A training that is resized five times: each sample of an epoch once, no repeated step, and the losses of a fixed size."""

from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from tests.cluster.elastic_group import LONG
from tests.cluster.kube import Kube
from tests.cluster.recorded_training import BATCH, PROGRAM, SAMPLES, STEPS, steps, training

SIZES = (2, 5, 3, 6, 1)


@LONG
def test_five_resizes_leave_samples_and_losses_unchanged(kube: Kube, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    kube.without_pod_security()
    kube.run("create", "configmap", "elastic", f"--from-file={PROGRAM}")
    kube.apply(training("fixed", tmp_path, 0.0))
    kube.apply(training("resized", tmp_path, 0.2))
    kube.wait_phase("resized", "Running", 120)

    def trains(attempt: int) -> bool:
        return any((tmp_path / "resized").glob(f"{attempt}-0.jsonl")) and bool(
            (tmp_path / "resized" / f"{attempt}-0.jsonl").read_text().count("\n") >= 10
        )

    for attempt, size in enumerate(SIZES, start=2):
        kube.until(partial(trains, attempt - 1), 120, f"attempt {attempt - 1} to train")
        kube.run("scale", "tj/resized", f"--replicas={size}")
    kube.until(lambda: trains(len(SIZES) + 1), 120, "the last size")
    status = kube.wait_phase("resized", "Complete", 300)
    restarts = status["restarts"]
    assert (restarts["failures"], restarts["disruptions"], restarts["resizes"]) == (0, 0, len(SIZES))
    kube.wait_phase("fixed", "Complete", 120)
    resized, fixed = steps(tmp_path / "resized"), steps(tmp_path / "fixed")
    assert [*resized] == [*fixed] == [*range(1, STEPS + 1)]
    assert [number for number, step in resized.items() if len(step.attempts) > 1] == [], "no step is done twice"
    assert len({attempt for step in resized.values() for attempt in step.attempts}) == len(SIZES) + 1
    each = SAMPLES // BATCH
    for epoch in range(STEPS // each):
        seen = islice(resized.values(), epoch * each, (epoch + 1) * each)
        assert sorted(sample for step in seen for sample in step.samples) == [*range(SAMPLES)]
    assert [set(step.samples) for step in resized.values()] == [set(step.samples) for step in fixed.values()]
    assert [step.loss for step in resized.values()] == pytest.approx([step.loss for step in fixed.values()], rel=1e-3)
