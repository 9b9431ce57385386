"""What the end of a worker leads to, by the user's rules and by its exit code."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from tests.support.jobs import NOW, Scene, ago, job, spec, stored
from trainyard.api.internal_status import Backoff, RestartBudget
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase, Restarts
from trainyard.domain.plan import plan
from trainyard.domain.recovery.failure_rules import contains
from trainyard.domain.state.termination import Exit


def running(*rules: dict[str, Any], **recovery: Any) -> Scene:
    return job(3, recovery={"rules": [*rules], **recovery}).running()


def outcome(scene: Scene) -> str:
    """Restart, Ignore or Fail, as it shows in what is stored."""
    status = plan(scene.snapshot, NOW).status
    assert status == stored(status)
    if status.phase is Phase.FAILED:
        failed = status.condition(C.FAILED)
        assert failed is not None
        assert failed.reason == Reason.NON_RETRYABLE
        return "Fail"
    assert status.phase is Phase.RESTARTING
    assert status.restart_count == 1
    assert (status.last_failure is not None) is (status.restarts.failures == 1)
    return "Restart" if status.restarts.failures else "Ignore"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        *((code, "Restart") for code in (1, 3, 75, 91, 134, 137, 139, 143, 255)),
        *((code, "Ignore") for code in (90, 92, 94)),
        *((code, "Fail") for code in (2, 93, 95, 98, 126, 127)),
    ],
)
def test_an_exit_code_without_a_rule(code: int, expected: str) -> None:
    assert outcome(running().failed(1, exit_code=code)) == expected


@pytest.mark.parametrize(("code", "expected"), [(42, "Ignore"), (143, "Ignore"), (1, "Restart"), (127, "Fail")])
def test_saved_tensorflow_program_has_not_failed(code: int, expected: str) -> None:
    scene = running().with_spec(framework="tensorflow")
    assert outcome(scene.failed(1, exit_code=code)) == expected
    assert outcome(running().failed(1, exit_code=42)) == "Restart"
    rules = {"rules": [{"action": "Fail", "exitCodes": [42]}]}
    assert outcome(running().with_spec(framework="tensorflow", recovery=rules).failed(1, exit_code=42)) == "Fail"


@pytest.mark.parametrize(
    ("rule", "applies"),
    [
        ({"exitCodes": [3]}, True),
        ({"exitCodes": [4, 5]}, False),
        ({"reasons": ["OOMKilled"]}, True),
        ({"reasons": ["Evicted", "Error"]}, False),
        ({"message": "CUDA out of memory"}, True),
        ({"message": "RuntimeError*out of"}, True),
        ({"message": "out of*RuntimeError"}, False),
        ({"podConditions": ["MemoryLow"]}, True),
        ({"podConditions": ["DisruptionTarget"]}, False),
        ({"exitCodes": [3], "reasons": ["OOMKilled"], "message": "CUDA", "podConditions": ["MemoryLow"]}, True),
        ({"exitCodes": [3], "reasons": ["Error"]}, False),
    ],
)
def test_rule_applies_if_all_conditions_match(rule: dict[str, Any], *, applies: bool) -> None:
    scene = running({"action": "Fail", **rule}).pod(1, conditions=frozenset({"MemoryLow"}))
    message = "RuntimeError: CUDA out of memory"
    assert outcome(scene.failed(1, exit_code=3, reason="OOMKilled", message=message)) == (
        "Fail" if applies else "Restart"
    )


def test_first_matching_rule_precedes_exit_codes() -> None:
    rules = {"action": "Restart", "exitCodes": [127]}, {"action": "Fail", "exitCodes": [127, 1]}
    assert outcome(running(*rules).failed(1, exit_code=127)) == "Restart"
    assert outcome(running(*rules).failed(1, exit_code=1)) == "Fail"


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("fetch", 1, "Restart"),
        ("fetch", 127, "Fail"),
        ("trainyard-agent", 1, "Restart"),
        ("istio-init", 1, "Ignore"),
        ("istio-init", 127, "Ignore"),
        ("istio-init", 3, "Ignore"),
    ],
)
def test_init_container_of_admission_is_not_counted(name: str, code: int, expected: str) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "x"}], "initContainers": [{"name": "fetch"}]}}
    scene = running({"action": "Fail", "exitCodes": [3]}).with_spec(template=template)
    assert outcome(scene.failed(1, exit_code=code, init_container=name)) == expected


def test_only_init_container_is_from_admission() -> None:
    assert outcome(running().failed(1, exit_code=127, init_container="istio-init")) == "Ignore"


TAKEN = running().disrupted(1).pod(1, exit=Exit(ago(1), 143, "Error", "terminating"))
PREEMPTED, TARGET = {"reasons": ["PreemptionByScheduler"]}, {"podConditions": ["DisruptionTarget"]}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"action": "Fail", **PREEMPTED}, "Fail"),
        ({"action": "Ignore", **PREEMPTED}, "Ignore"),
        ({"action": "Restart", **PREEMPTED}, "Restart"),
        ({"action": "Restart", **TARGET}, "Restart"),
        ({"action": "Restart", "message": "higher priority"}, "Restart"),
        ({"action": "Restart", "exitCodes": [143]}, "Ignore"),
        ({"action": "Restart", "reasons": ["Error"]}, "Ignore"),
        ({"action": "Fail", "message": "terminating"}, "Ignore"),
    ],
)
def test_disruption_is_uncounted_unless_a_rule_matches(rule: dict[str, Any], expected: str) -> None:
    """What the program did once it was asked to go says nothing of it."""
    scene = running(rule).disrupted(1)
    pods = TAKEN.pod(1, conditions=frozenset({"DisruptionTarget"})).pods
    assert outcome(replace(scene, pods=pods)) == expected


def test_counted_disruption_becomes_the_last_failure() -> None:
    scene = running({"action": "Restart", **PREEMPTED}, maxRestarts=0).disrupted(1)
    decided = plan(scene.snapshot, NOW)
    failed, last = decided.status.condition(C.FAILED), decided.status.last_failure
    assert failed is not None
    assert failed.reason == Reason.RESTARTS_EXHAUSTED
    assert last is not None
    assert (last.pod, last.rank, last.time) == ("train-worker-1-1", 1, ago(5))
    assert (last.exit_code, last.reason, last.message) == (None, "PreemptionByScheduler", "a pod of higher priority")
    assert decided.status.restarts == Restarts(failures=1)
    assert " (counted: recovery.rules[0] says Restart)" in decided.events[0].note


@pytest.mark.parametrize("node", ["node1", None])
def test_a_disruption_that_sends_elsewhere_is_free(node: str | None) -> None:
    scene = running({"action": "RestartElsewhere", **PREEMPTED}).disrupted(1).pod(1, node=node)
    assert outcome(scene) == "Ignore"


def test_a_refusal_can_be_charged_too() -> None:
    scene = running({"action": "Restart", "reasons": ["UnexpectedAdmissionError"]}).rejected(1)
    assert outcome(scene) == "Restart"
    last = plan(scene.snapshot, NOW).status.last_failure
    assert last is not None
    assert (last.time, last.reason) == (NOW, "UnexpectedAdmissionError")


def test_rule_does_not_match_a_missing_pod() -> None:
    assert outcome(running({"action": "Fail", "message": "*"}).gone(1)) == "Ignore"


def test_rule_matches_the_cause_not_its_victims() -> None:
    scene = running({"action": "Fail", "exitCodes": [1]}).failed(
        0, exit_code=1, seconds_ago=9, message="DistBackendError", peer_lost=True
    )
    assert outcome(scene.failed(1, exit_code=3, seconds_ago=8)) == "Restart"
    victims = running().failed(0, exit_code=92, seconds_ago=9).failed(1, exit_code=3, seconds_ago=8)
    failure = plan(victims.snapshot, NOW).status.last_failure
    assert failure is not None
    assert failure.rank == 1


@pytest.mark.parametrize(
    ("scene", "words"),
    [
        (
            running({"action": "Fail", "exitCodes": [7]}).failed(1, exit_code=7),
            "; the job failed: recovery.rules[0] says Fail",
        ),
        (
            running({"action": "Ignore", "exitCodes": [7]}).failed(1, exit_code=7),
            " (not counted: recovery.rules[0] says Ignore); restarting",
        ),
        (
            running().failed(1, exit_code=127),
            (
                "; the job failed: exit code 127: the command cannot be executed, or is not in the image."
                " Fix the command or the image; to retry on this exit code, add a rule to recovery.rules"
            ),
        ),
        (running().failed(1, exit_code=90), " (not counted: exit code 90: exited on request, with"),
    ],
)
def test_the_event_names_the_rule(scene: Scene, words: str) -> None:
    (event,) = plan(scene.snapshot, NOW).events
    assert event.note.startswith("worker 1 of attempt 1 (pod train-worker-1-1 on node1) failed with exit code")
    assert words in event.note


# The window


def test_only_the_failures_of_the_window_count() -> None:
    recent = [ago(7200), ago(3601), ago(3599), ago(60)]
    scene = running(maxRestarts=3, windowSeconds=3600).with_status(
        restarts=Restarts(failures=40), restart_budget=RestartBudget(recent=recent)
    )
    decided = plan(scene.failed(1).snapshot, NOW)
    assert decided.status.phase is Phase.RESTARTING
    assert "(3 of 3 restarts used in 3600 seconds)" in decided.events[0].note
    assert decided.status.restarts == Restarts(failures=41)
    assert decided.status.internal.restart_budget.recent == [ago(3599), ago(60), NOW]


def test_one_failure_beyond_the_window_fails_the_job() -> None:
    recent = [ago(3599), ago(60), ago(5)]
    scene = running(maxRestarts=3, windowSeconds=3600).with_status(
        restarts=Restarts(failures=3), restart_budget=RestartBudget(recent=recent)
    )
    decided = plan(scene.failed(1).snapshot, NOW)
    failed = decided.status.condition(C.FAILED)
    assert failed is not None
    assert failed.reason == Reason.RESTARTS_EXHAUSTED
    assert "; the job failed: 4 failures in 3600 seconds, and recovery.maxRestarts allows 3. Fix" in failed.message


def test_a_window_that_is_set_later_begins_then() -> None:
    scene = running(maxRestarts=1, windowSeconds=3600).with_status(restarts=Restarts(failures=9))
    status = plan(scene.failed(1).snapshot, NOW).status
    assert status.restarts == Restarts(failures=10)
    assert status.internal.restart_budget.recent == [NOW]


def test_removed_window_restores_no_failures() -> None:
    """Of forty failures in half a year two counted: those, and the ones to come."""
    scene = running(maxRestarts=3).with_status(
        restarts=Restarts(failures=40), restart_budget=RestartBudget(recent=[ago(60), ago(5)])
    )
    decided = plan(scene.failed(1).snapshot, NOW)
    assert decided.status.restarts == Restarts(failures=41)
    assert decided.status.internal.restart_budget == RestartBudget(forgiven=38)
    assert "(3 of 3 restarts used; 38 earlier failures no longer count)" in decided.events[0].note
    more = running(maxRestarts=3).with_status(restarts=decided.status.restarts)
    assert plan(more.failed(1).snapshot, NOW).status.finished


def test_removed_window_forgives_no_negative_number() -> None:
    """The status was edited by hand: it has more times than failures."""
    scene = running().with_status(restarts=Restarts(), restart_budget=RestartBudget(recent=[ago(60)]))
    assert plan(scene.failed(1).snapshot, NOW).status.internal.restart_budget.forgiven == 0


def test_times_do_not_pile_up() -> None:
    recent = [ago(10)] * 1000
    scene = running(maxRestarts=5, windowSeconds=3600).with_status(
        restarts=Restarts(failures=1000), restart_budget=RestartBudget(recent=recent)
    )
    kept = plan(scene.failed(1).snapshot, NOW).status.internal.restart_budget.recent
    assert kept is not None
    assert len(kept) == 7


# Patterns


@pytest.mark.parametrize(
    ("text", "pattern", "found"),
    [
        ("abc", "b", True),
        ("abc", "*", True),
        ("", "*", True),
        ("abc", "a*c", True),
        ("abc", "c*a", False),
        ("aa", "a*a*a", False),
        ("a.c", "a.c", True),
        ("abc", "a.c", False),
        ("line\nbreak", "line*break", True),
    ],
)
def test_a_pattern_is_text_with_gaps(text: str, pattern: str, *, found: bool) -> None:
    assert contains(text, pattern) is found


@given(st.lists(st.text(alphabet="ab", max_size=4), max_size=6), st.text(alphabet="ab", max_size=3))
def test_what_was_put_together_is_found_again(parts: list[str], between: str) -> None:
    assert contains(between.join(["", *parts, ""]), "*".join(parts))


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"action": "Explode", "exitCodes": [1]},
        {"action": "Fail", "exitCodes": []},
        {"action": "Fail", "exitCodes": [0]},
        {"action": "Fail", "exitCodes": [256]},
        {"action": "Fail", "reasons": [""]},
        {"action": "Fail", "message": ""},
    ],
)
def test_what_is_no_rule(rule: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec(recovery={"rules": [rule]})


@pytest.mark.parametrize(("code", "expected"), [(90, "Restart"), (94, "Ignore"), (93, "Fail")])
def test_only_uncounted_restarts_count_after_early_ends(code: int, expected: str) -> None:
    assert outcome(running().with_status(backoff=Backoff(count=9)).failed(1, exit_code=code)) == expected
