"""What runs out of memory does so again: once more it is tried."""

from typing import Any

import pytest

from tests.support.jobs import NOW, Scene, job
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, TrainingJobStatus
from trainyard.domain.plan import plan

OOM: dict[str, Any] = {"exit_code": 137, "reason": "OOMKilled"}
BUS: dict[str, Any] = {"exit_code": 135}
CHILD: dict[str, Any] = {
    "exit_code": 1,
    "reason": "OOMKilled",
    "message": "rank 1 ended with exit code 1: out of memory",
}
LIMITED = {"spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": {"memory": "16Gi"}}}]}}
TRY_ON = [{"action": "Restart", "reasons": ["OOMKilled"]}]


INIT = {"name": "fetch", "image": "i", "resources": {"limits": {"memory": "1Gi"}}}
DELETED: dict[str, Any] = {}


def after(*ends: dict[str, Any], **spec: Any) -> TrainingJobStatus:
    """The status when attempts have ended so, one after the other."""
    scene = job(3, **spec)
    for end in ends:
        running = scene.running(attempt=scene.status.attempt)
        hit = running.failed(1, **end) if end else running.deleted(1)
        scene = Scene(hit.spec, plan(hit.snapshot, NOW).status)
    return scene.status


@pytest.mark.parametrize(
    ("ends", "spec", "fails"),
    [
        pytest.param([OOM], {}, False, id="once"),
        pytest.param([OOM, OOM], {}, True, id="twice"),
        pytest.param([BUS], {}, False, id="SIGBUS once"),
        pytest.param([BUS, BUS], {}, True, id="SIGBUS twice"),
        pytest.param([BUS, OOM], {}, True, id="SIGBUS first"),
        pytest.param(
            [BUS, BUS],
            {"recovery": {"rules": [{"action": "Restart", "exitCodes": [135]}]}},
            False,
            id="a rule for SIGBUS",
        ),
        pytest.param([OOM, CHILD], {}, True, id="a process of its own the second time"),
        pytest.param([{**OOM, "step": 7}, {**OOM, "step": 7}], {}, True, id="at the same step"),
        pytest.param([{**OOM, "step": 7}, {**OOM, "step": 6}], {}, True, id="earlier"),
        pytest.param([{**OOM, "step": 7}, {**OOM, "step": 8}], {}, False, id="further"),
        pytest.param([{**OOM, "step": 7}, {**OOM, "step": 8}, {**OOM, "step": 8}], {}, True, id="further, and no more"),
        pytest.param([OOM, {"exit_code": 1}, OOM], {}, False, id="with another failure between"),
        pytest.param([OOM, DELETED, OOM], {}, True, id="with a disruption between"),
        pytest.param([OOM, OOM, OOM], {"recovery": {"rules": TRY_ON}}, False, id="a rule says to try on"),
    ],
)
def test_it_fails_the_second_time_in_a_row(ends: list[dict[str, Any]], spec: dict[str, Any], *, fails: bool) -> None:
    status = after(*ends, **spec)
    failed = status.condition(C.FAILED)
    assert (failed is not None) is fails
    assert failed is None or failed.reason == Reason.NON_RETRYABLE


def test_leak_over_hours_is_tolerated() -> None:
    scene = job(3)
    for _ in range(4):
        hit = scene.running(attempt=scene.status.attempt, seconds_ago=3600).failed(1, **OOM)
        scene = Scene(hit.spec, plan(hit.snapshot, NOW).status)
    assert (scene.status.condition(C.FAILED), scene.status.internal.restart_budget.out_of_memory) == (None, 1)


@pytest.mark.parametrize("how", [{"replicas": 2}, {"lifecycle": {"suspend": True}}])
def test_changed_job_may_run_out_of_memory_again(how: dict[str, Any]) -> None:
    status = after(OOM)
    assert status.internal.restart_budget.out_of_memory == 1
    changed = Scene(job(3).spec, status).running(attempt=status.attempt).with_spec(**how)
    assert plan(changed.snapshot, NOW).status.internal.restart_budget.out_of_memory is None


def test_message_names_full_shared_memory() -> None:
    failed = after(BUS, BUS, template=LIMITED).condition(C.FAILED)
    assert failed is not None
    assert failed.message.endswith(
        "out of memory 2 times without progress with a limit of 16Gi, the last time of memory that was mapped: usually /dev/shm is full, which counts"
        " towards resources.limits.memory of container main; give it more, or have fewer workers load data;"
        " a rule {action: Restart, exitCodes: [135]} keeps restarting the job"
    )


@pytest.mark.parametrize(("template", "limit"), [(LIMITED, " with a limit of 16Gi"), (job().spec.template, "")])
def test_message_names_the_memory_limit_and_remedy(template: dict[str, Any], limit: str) -> None:
    failed = after(OOM, OOM, template=template).condition(C.FAILED)
    assert failed is not None
    assert failed.message.endswith(
        f"failed with exit code 137 (OOMKilled); the job failed: out of memory 2 times without progress{limit}:"
        " give container main more (resources.limits.memory), or have it use less; a rule {action: Restart, reasons: [OOMKilled]} keeps restarting the job"
    )


def test_oom_killed_process_needs_no_shared_memory() -> None:
    failed = after({**BUS, **OOM, "exit_code": 135}, {**OOM, "exit_code": 135}).condition(C.FAILED)
    assert failed is not None
    assert "mapped" not in failed.message
    assert "(resources.limits.memory), or have it use less" in failed.message


def test_known_step_shows_a_leak_without_progress() -> None:
    """An attempt of an hour is progress only where the step is unknown."""
    scene = job(3)
    for _ in range(2):
        hit = scene.running(attempt=scene.status.attempt, seconds_ago=3600).failed(1, **OOM, step=7)
        scene = Scene(hit.spec, plan(hit.snapshot, NOW).status)
    assert scene.status.condition(C.FAILED) is not None


def test_message_names_the_init_container_and_its_limit() -> None:
    template: dict[str, Any] = {"spec": {**LIMITED["spec"], "initContainers": [INIT]}}
    failed = after({**OOM, "init_container": "fetch"}, {**OOM, "init_container": "fetch"}, template=template)
    condition = failed.condition(C.FAILED)
    assert condition is not None
    assert "with a limit of 1Gi: give container fetch more" in condition.message
