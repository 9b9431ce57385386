"""Requests for the stacks of all ranks: stored once, and for the attempt that runs."""

from dataclasses import replace

from tests.support.jobs import NOW, SUPERVISED, Scene, job, stored
from trainyard.api.internal_status import StackDump
from trainyard.domain.decisions import Plan
from trainyard.domain.plan import plan

RUNS = job(2, template=SUPERVISED).running().with_agents()


def asked(scene: Scene, request: str) -> Plan:
    """Return the plan for a job whose annotation has this value."""
    snapshot = scene.snapshot
    return plan(replace(snapshot, job=replace(snapshot.job, stack_request=request)), NOW)


def test_request_is_stored_before_agents_see_it() -> None:
    decided = asked(RUNS, "monday")
    assert decided.status.internal.stack_dump == StackDump(request="monday", attempt=1)
    assert (decided.status.stacks_requested, list(decided.actions)) == ("monday", [])
    (event,) = [each for each in decided.events if each.reason == "StacksRequested"]
    assert event.note.endswith("kubectl -n ns logs -l trainyard.dev/job-name=train --prefix --tail=-1")


def test_same_request_is_followed_once() -> None:
    later = replace(RUNS, status=stored(asked(RUNS, "monday").status))
    assert asked(later, "monday").events == []
    assert asked(later, "").events == []
    assert asked(later, "tuesday").status.stacks_requested == "tuesday"


def test_request_waits_for_ranks() -> None:
    assert asked(job(2, template=SUPERVISED).created(), "monday").status.internal.stack_dump is None


def test_request_is_for_the_attempt_that_runs() -> None:
    later = RUNS.with_status(stack_dump=StackDump(request="monday", attempt=1), attempt=2)
    assert later.status.stacks_requested == ""


def test_job_without_agents_says_so() -> None:
    decided = asked(job(2).running(), "monday")
    (event,) = [each for each in decided.events if each.reason == "StacksRequested"]
    assert (event.type, event.note[:9]) == ("Warning", "no stacks")
