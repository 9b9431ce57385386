"""What is stored of a failure that is counted, whatever is known of it."""

from typing import Any

import pytest

from tests.support.jobs import NOW, job, worker
from trainyard.api.reasons import Reason
from trainyard.domain.recovery.restart_budget import count_end
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import PodIssue

END = {"exit": Exit(NOW, 3, "Error", "boom")}
DISRUPTION = {"disruption": PodIssue("Evicted", "disk")}
ISSUE = {"issue": PodIssue("UnexpectedAdmissionError", "no device")}


@pytest.mark.parametrize(
    ("reason", "known", "stored"),
    [
        pytest.param(Reason.WORKER_FAILED, END | DISRUPTION | ISSUE, ("Error", "boom"), id="the exit first"),
        pytest.param(Reason.WORKER_DISRUPTED, END | DISRUPTION | ISSUE, ("Evicted", "disk"), id="then the disruption"),
        pytest.param(Reason.ADMISSION_REJECTED, ISSUE, ("UnexpectedAdmissionError", "no device"), id="then the issue"),
        pytest.param(Reason.ADMISSION_REJECTED, {}, ("AdmissionRejected", ""), id="nothing else is known"),
    ],
)
def test_last_failure_prefers_the_exit(reason: Reason, known: dict[str, Any], stored: tuple[str, str]) -> None:
    cause = Cause(reason, 1, worker(1, **known), NOW, counted_by_rule=True)
    failure = count_end(job(3).running().job, cause, NOW).last_failure
    assert failure is not None
    assert (failure.reason, failure.message) == stored
