"""The same exception at the same place, before a step, ends the job once a new process and a new pod were tried."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.support.jobs import NOW, SUPERVISED, Scene, ago, job, stored
from trainyard.api.internal_status import MAX_REPEAT_PODS, RepeatedFailure
from trainyard.api.reasons import Reason
from trainyard.api.recovery import RestartScope
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.plan import plan
from trainyard.domain.recovery.repeated_failures import KNOWN_CAUSES, advice, proof
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.termination import Exit, Kind

MODULE = {
    "kind": Kind.FAILED,
    "exception": "ModuleNotFoundError",
    "location": "train.py:3 in <module>",
    "cause": "missingModule",
    "headline": "rank 0 exited with code 1: ModuleNotFoundError: No module named 'einops'",
}
BUG = {**MODULE, "exception": "TypeError", "cause": "program", "headline": "rank 0 exited with code 1: TypeError: x"}


def run(scene: Scene, *failures: dict[str, Any], nodes: str = "ab", ran: float = 5) -> Scene:
    """Let attempts fail one after the other, each on the next of these nodes, until the job has finished."""
    for number, failure in enumerate(failures):
        if scene.status.finished:
            break
        index = failure.get("index", 0)
        scene = scene.pod(index, node=nodes[min(number, len(nodes) - 1)]).with_status(running_time=ago(ran))
        fields = {name: value for name, value in failure.items() if name != "index"}
        ended = scene.reported_failed(index, **fields, seconds_ago=10)
        status = stored(plan(ended.snapshot, NOW).status)
        scene = started(replace(scene, status=status))
    return scene


def started(scene: Scene) -> Scene:
    """The next attempt, with the new pods that it asks for."""
    if scene.status.finished:
        return scene
    made = Scene(scene.spec, scene.status.evolve(group=None)).running(attempt=scene.status.attempt)
    created = [scene.status.created_in_attempt(pod.index) for pod in made.pods]
    pods = tuple(
        replace(pod, attempt=of, uid=f"pod-{pod.index}-{of}", name=f"train-worker-{pod.index}-{of}")
        for pod, of in zip(made.pods, created, strict=True)
    )
    rendezvous = {"attempt": scene.status.attempt, "address": "10.0.0.1"}
    restored = replace(made, pods=pods).with_status(
        group=scene.status.internal.group, rendezvous=rendezvous, backoff=scene.status.internal.backoff
    )
    return restored.with_agents()


ONE = Scene(job(1).spec.evolve(template=SUPERVISED)).running().with_agents()
THREE = Scene(job(3).spec.evolve(template=SUPERVISED)).running().with_agents()


@pytest.mark.parametrize("failure", [MODULE, BUG], ids=["module", "bug"])
@pytest.mark.parametrize("group", [ONE, THREE], ids=["one worker", "three workers"])
def test_third_attempt_ends_the_job(group: Scene, failure: dict[str, Any]) -> None:
    twice = run(group, failure, failure, nodes="aab")
    assert twice.status.attempt == 3
    assert twice.status.created_in_attempt(0) == 3, "the second failure gets a new pod"
    ended = run(group, *[failure] * 9, nodes="aab")
    failed = ended.status.condition(C.FAILED)
    assert failed is not None
    assert (ended.status.attempt, failed.reason) == (3, Reason.NON_RETRYABLE)
    assert "the same exception at the same place ended 3 attempts in 2 pods before a step" in failed.message


def test_command_with_own_ranks_fails_at_once() -> None:
    ended = run(ONE, {**BUG, "exception": "ProcessRaisedException", "cause": "startsOwnRanks"})
    failed = ended.status.condition(C.FAILED)
    assert failed is not None
    assert (ended.status.attempt, failed.reason) == (1, Reason.NON_RETRYABLE)
    assert "started once for each process of the worker" in failed.message
    assert failed.message.endswith("set processesPerReplica: 1")


def test_lost_peer_hides_a_certain_cause() -> None:
    lost = {**BUG, "cause": "startsOwnRanks", "peer_lost": True}
    assert run(ONE, lost).status.attempt == 2


def test_module_on_one_node_gets_more_attempts() -> None:
    assert run(ONE, *[MODULE] * 9, nodes="a").status.attempt == 5
    assert run(ONE, *[BUG] * 9, nodes="a").status.attempt == 3


def test_three_workers_take_turns_to_fail_first() -> None:
    turns = [{**BUG, "index": index} for index in (2, 0, 1, 2, 0)]
    assert run(THREE, *turns).status.attempt == 3


def test_fix_is_in_the_first_message() -> None:
    restarting = run(ONE, MODULE).status.condition(C.RESTARTING)
    assert restarting is not None
    assert "install the module in the image" in restarting.message


@pytest.mark.parametrize(
    "failures",
    [
        pytest.param([BUG, {**BUG, "location": "b.py:1 in f"}] * 2, id="another place"),
        pytest.param([BUG, {**BUG, "exception": "KeyError"}] * 2, id="another exception"),
        pytest.param([{**BUG, "step": step} for step in (1, 2, 3, 4)], id="steps"),
        pytest.param([{**BUG, "cause": ""}] * 4, id="from outside"),
        pytest.param([{**BUG, "cause": "nameNotResolved"}] * 4, id="DNS may come back"),
        pytest.param([{**BUG, "cause": "noAccelerator"}] * 4, id="a GPU may come back"),
        pytest.param([{**BUG, "cause": "of a newer agent"}] * 4, id="unknown cause"),
        pytest.param([{**BUG, "peer_lost": True}] * 4, id="a lost peer"),
    ],
)
def test_job_goes_on_where_a_restart_may_help(failures: list[dict[str, Any]]) -> None:
    assert run(ONE, *failures).status.attempt == 5


def test_long_attempts_may_have_made_steps() -> None:
    assert run(ONE, *[BUG] * 4, ran=timedelta(minutes=11).total_seconds()).status.attempt == 5


SAVED = {"exit_code": 90, "kind": Kind.SAVED}


def test_uncounted_end_between_them_is_no_progress() -> None:
    assert run(ONE, BUG, SAVED, BUG, BUG, nodes="ab").status.phase is Phase.FAILED
    stepped = run(ONE, BUG, {**SAVED, "step": 7}, BUG, nodes="ab")
    repeated = stepped.status.internal.restart_budget.repeated
    assert repeated is not None
    assert repeated.failures == 1


def test_rule_of_the_user_wins() -> None:
    rules = {"rules": [{"action": "Restart", "exitCodes": [1]}]}
    scene = Scene(job(1, recovery=rules).spec.evolve(template=SUPERVISED)).running().with_agents()
    assert run(scene, *[BUG] * 4).status.attempt == 5


def test_new_pods_from_the_start_are_proof_too() -> None:
    group = {"minRestartScope": RestartScope.GROUP}
    scene = Scene(job(2, recovery=group).spec.evolve(template=SUPERVISED)).running().with_agents()
    assert run(scene, *[BUG] * 9, nodes="abc").status.phase is Phase.FAILED


def test_change_of_the_job_resets_the_row() -> None:
    twice = run(ONE, BUG, BUG)
    again = replace(twice, status=stored(plan(twice.with_spec(lifecycle={"suspend": True}).snapshot, NOW).status))
    assert again.status.internal.restart_budget.repeated is None


def test_fixes_are_short_sentences() -> None:
    assert all(len(known.fix.split()) <= 25 for known in KNOWN_CAUSES.values())


def test_long_row_names_some_pods_only() -> None:
    always = {"minRestartScope": RestartScope.GROUP, "rules": [{"action": "Restart", "exitCodes": [1]}]}
    scene = Scene(job(1, recovery=always).spec.evolve(template=SUPERVISED)).running().with_agents()
    row = run(scene, *[BUG] * 9, nodes="abcdefghi").status.internal.restart_budget.repeated
    assert row is not None
    assert (row.failures, len(row.pods), row.nodes) == (9, MAX_REPEAT_PODS, [*"abcdefgh"])


def test_failures_in_one_pod_prove_nothing() -> None:
    failed = replace(ONE.pods[0], exit=Exit(NOW, 1, "Error", "", cause="program"))
    cause = Cause(Reason.WORKER_FAILED, 0, failed, NOW)
    row = RepeatedFailure(exception="TypeError", location="train.py:3", failures=9, pods=["a"], nodes=["x"])
    assert proof(row, cause) == ""
    unknown = replace(cause, pod=replace(failed, exit=Exit(NOW, 1, "Error", "")))
    assert proof(row.evolve(pods=["a", "b"]), unknown) == ""
    assert "9 attempts in 2 pods" in proof(row.evolve(pods=["a", "b"]), cause)


@pytest.mark.parametrize(
    ("cause", "expected"),
    [("", ""), ("of a newer agent", ""), ("program", ""), ("noHome", f"; {KNOWN_CAUSES['noHome'].fix}")],
)
def test_advice_ends_the_sentence_where_known(cause: str, expected: str) -> None:
    failed = replace(ONE.pods[0], exit=Exit(NOW, 1, "Error", "", cause=cause))
    assert advice(Cause(Reason.WORKER_FAILED, 0, failed, NOW)) == expected
