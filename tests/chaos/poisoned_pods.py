"""Hostile changes of pods and statuses while a job, the victim, runs. Only the victim may be affected."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from typing_extensions import override

from tests.chaos.admin_client import JOBS, MERGE, PODS
from tests.chaos.poisoned_manifests import EVERY_CHARACTER, FAR, LONG_AGO
from tests.chaos.shared_operator import SharedOperator

Json = dict[str, Any]
Act = Callable[[SharedOperator, str], Awaitable[Any]]

VICTIM: Final = "victim"
WORKER: Final = f"{VICTIM}-worker-0-1"


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done to the victim (its UID is passed). `goes_on`: the victim comes to its end as if nothing had
    happened.
    """

    name: str
    act: Act
    goes_on: bool = False

    @override
    def __str__(self) -> str:
        return self.name


def foreign(
    name: str, *, owned: bool = True, attempt: str = "1", labels: Json | None = None, annotations: Json | None = None
) -> Act:
    """A pod that somebody else makes and that bears our labels."""

    async def act(shared: SharedOperator, uid: str) -> None:
        ours = {"trainyard.dev/job-uid": uid, "trainyard.dev/attempt": attempt, "trainyard.dev/index": "0"}
        kind = {"apiVersion": "trainyard.dev/v1alpha1", "kind": "TrainingJob"}
        metadata: Json = {"name": name, "labels": {**ours, **(labels or {})}, "annotations": annotations or {}}
        if owned:
            metadata["ownerReferences"] = [{**kind, "name": VICTIM, "uid": uid, "controller": True}]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        await shared.client.call("POST", PODS, {**pod, "spec": {"containers": [{"name": "other", "image": "other:1"}]}})

    return act


def _request(method: str, path: str, body: Json) -> Act:
    return lambda shared, _: shared.client.call(method, path, body, MERGE)


def pod(**fields: Any) -> Act:
    """Somebody edits the worker's pod."""
    return _request("PATCH", f"{PODS}/{WORKER}", fields)


def pod_status(**fields: Any) -> Act:
    """A node with a mind of its own."""
    return _request("PATCH", f"{PODS}/{WORKER}/status", {"status": fields})


def container(**fields: Any) -> Act:
    """The same, of the main container."""
    whole = {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0, **fields}
    return pod_status(containerStatuses=[whole])


def ended(**fields: Any) -> Act:
    """An end of the main container."""
    terminated = {"exitCode": 1, "reason": "Error", "startedAt": LONG_AGO, "finishedAt": LONG_AGO, **fields}
    return container(state={"terminated": terminated})


def condition(**fields: Any) -> Act:
    """A condition of the pod."""
    return pod_status(conditions=[{"type": "DisruptionTarget", "status": "True", **fields}])


def job_status(**fields: Any) -> Act:
    """Somebody writes the job's status by hand."""
    return _request("PATCH", f"{JOBS}/{VICTIM}/status", {"status": fields})


def grace(seconds: int) -> Act:
    """Somebody deletes the worker with this grace period."""
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": seconds}
    return lambda shared, _: shared.client.call("DELETE", f"{PODS}/{WORKER}", options)


def condition_of(kind: str, *, time: str = LONG_AGO, status: str = "True", message: str = "by hand") -> Json:
    """A condition of the job."""
    return {"type": kind, "status": status, "reason": "ByHand", "message": message, "lastTransitionTime": time}


HUGE: Final = EVERY_CHARACTER * 300
"""200 kB."""

DEEDS: Final = (
    Deed("a foreign pod with our labels", foreign("other", owned=False), goes_on=True),
    Deed("a foreign pod with a worker's name", foreign("other-worker-0-1", owned=False), goes_on=True),
    Deed(
        "a foreign pod of another job's label",
        foreign("other-worker-0-1", labels={"trainyard.dev/job-uid": "x"}),
        goes_on=True,
    ),
    Deed("an owned pod whose name is no worker's", foreign("other"), goes_on=True),
    Deed("an owned pod of rank 99999999999999999999", foreign("other-worker-99999999999999999999-1")),
    Deed("an owned pod of attempt 99999999999999999999", foreign("other-worker-0-99999999999999999999")),
    Deed("an owned pod of a rank of 200 digits", foreign(f"o-worker-{'9' * 200}-1")),
    Deed("an owned pod of attempt 0", foreign("other-worker-0-0")),
    Deed("an owned pod of the next attempt", foreign("other-worker-0-2")),
    Deed("an owned pod of our own rank", foreign("other-worker-0-1")),
    Deed("an owned pod with an attempt label in words", foreign("other-worker-1-1", attempt="first")),
    Deed(
        "an owned pod of a group of 10^30",
        foreign("other-worker-1-1", annotations={"trainyard.dev/workers": "1" + "0" * 30}),
    ),
    Deed("a worker's group size in words", pod(metadata={"annotations": {"trainyard.dev/workers": "many"}})),
    Deed("a worker's group size below zero", pod(metadata={"annotations": {"trainyard.dev/workers": "-1"}})),
    Deed("a worker's group size changed", pod(metadata={"annotations": {"trainyard.dev/workers": "7"}})),
    Deed(
        "a worker's main container changed",
        pod(metadata={"annotations": {"trainyard.dev/main-container": "nobody"}}),
        goes_on=True,
    ),
    Deed(
        "a worker's template hash and generation changed",
        pod(metadata={"annotations": {"trainyard.dev/template-hash": "x", "trainyard.dev/generation": "many"}}),
    ),
    Deed("a worker's annotations taken away", pod(metadata={"annotations": None})),
    Deed("a worker's annotation of 200 kB", pod(metadata={"annotations": {"note": "x" * 200_000}}), goes_on=True),
    Deed("a worker's labels taken away", pod(metadata={"labels": None})),
    Deed("a worker's attempt label changed", pod(metadata={"labels": {"trainyard.dev/attempt": "99"}}), goes_on=True),
    Deed("a worker's owner taken away", pod(metadata={"ownerReferences": None})),
    Deed("a worker's job label changed", pod(metadata={"labels": {"trainyard.dev/job-uid": "x"}})),
    Deed("a phase that is none", pod_status(phase="Nonsense")),
    Deed("a phase of every character", pod_status(phase=EVERY_CHARACTER)),
    Deed("an unknown phase", pod_status(phase="Unknown"), goes_on=True),
    Deed("no container statuses", pod_status(containerStatuses=None)),
    Deed(
        "a status of a container that is not there",
        pod_status(containerStatuses=[{"name": "x", "image": "", "imageID": "", "ready": True, "restartCount": 0}]),
    ),
    Deed("a container without a state", container()),
    Deed("a container with an empty state", container(state={})),
    Deed("a container that waits for nothing", container(state={"waiting": {}})),
    Deed(
        "a container that waits for everything",
        container(state={"waiting": {"reason": EVERY_CHARACTER, "message": HUGE}}),
    ),
    Deed("a container in three states", container(state={"waiting": {}, "running": {}, "terminated": {"exitCode": 1}})),
    Deed("an end without a time", container(state={"terminated": {"exitCode": 1}})),
    Deed("an end with the greatest exit code", ended(exitCode=2**31 - 1)),
    Deed("an end with the smallest exit code", ended(exitCode=-(2**31))),
    Deed("an end in the year 9999", ended(finishedAt=FAR)),
    Deed("an end in the year 1", ended(finishedAt=LONG_AGO)),
    Deed("an end for every reason", ended(reason=EVERY_CHARACTER, message=EVERY_CHARACTER)),
    Deed("an end with 200 kB of last words", ended(message=HUGE)),
    Deed("an end by a signal that is none", ended(exitCode=0, signal=2**31 - 1)),
    Deed("restarts without end", container(restartCount=2**31 - 1)),
    Deed(
        "an init container that is not there",
        pod_status(
            phase="Failed",
            initContainerStatuses=[
                {
                    "name": "x",
                    "image": "",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": {"exitCode": 3, "finishedAt": FAR}},
                }
            ],
        ),
    ),
    Deed("a reason and a message of 200 kB", pod_status(phase="Failed", reason=EVERY_CHARACTER, message=HUGE)),
    Deed("a disruption in the year 9999", condition(lastTransitionTime=FAR, reason="x", message=HUGE)),
    Deed("a disruption in the year 1", condition(lastTransitionTime=LONG_AGO, reason=EVERY_CHARACTER)),
    Deed("a disruption without anything", condition()),
    Deed(
        "a condition of every character",
        pod_status(conditions=[{"type": EVERY_CHARACTER, "status": EVERY_CHARACTER}]),
        goes_on=True,
    ),
    Deed(
        "one condition twice",
        pod_status(conditions=[{"type": "Ready", "status": "True"}, {"type": "Ready", "status": "False"}]),
    ),
    Deed(
        "a thousand conditions",
        pod_status(conditions=[{"type": f"example.com/c{n}", "status": "True"} for n in range(1000)]),
        goes_on=True,
    ),
    Deed("a deletion in three hundred years", grace(10**10)),
    Deed("a deletion in three billion years", grace(10**17)),
    Deed(
        "the status wiped out",
        _request("PATCH", f"{JOBS}/{VICTIM}", {"status": None}),
        goes_on=True,
    ),
    Deed(
        "the status emptied",
        _request("PATCH", f"{JOBS}/{VICTIM}/status", {"status": None}),
        goes_on=True,
    ),
    Deed("an attempt below one", job_status(attempt=0), goes_on=True),
    Deed("an attempt in words", job_status(attempt="first"), goes_on=True),
    Deed("the last attempt there can be", job_status(attempt=2**53, launchedAttempt=2**53)),
    Deed("an attempt past that", job_status(attempt=2**53 + 1), goes_on=True),
    Deed("an attempt that was launched before it was decided", job_status(launchedAttempt=99), goes_on=True),
    Deed("a phase of the job that is none", job_status(phase="Nonsense"), goes_on=True),
    Deed("an unknown condition of the job", job_status(conditions=[condition_of("Nonsense")]), goes_on=True),
    Deed(
        "a condition of the job from the year 9999",
        job_status(conditions=[condition_of("Running", time=FAR)]),
        goes_on=True,
    ),
    Deed(
        "a condition of the job from the year 99999",
        job_status(conditions=[condition_of("Running", time="99999-01-01T00:00:00Z")]),
        goes_on=True,
    ),
    Deed(
        "twenty conditions of 32 kB",
        job_status(conditions=[condition_of(f"C{n}", message="x" * 32_768) for n in range(20)]),
        goes_on=True,
    ),
    Deed("an end by hand", job_status(conditions=[condition_of("Complete")])),
    Deed("two ends by hand", job_status(conditions=[condition_of("Complete"), condition_of("Failed")])),
    Deed("a suspension by hand", job_status(conditions=[condition_of("Suspended")])),
    Deed(
        "times at the end of all time",
        job_status(startTime=FAR, runningTime=FAR, activeSince=FAR, attemptStartTime=FAR),
        goes_on=True,
    ),
    Deed(
        "times at the begin of all time",
        job_status(startTime=LONG_AGO, runningTime=LONG_AGO, activeSince=LONG_AGO),
        goes_on=True,
    ),
    Deed("a next attempt at the end of all time", job_status(attempt=2, backoff={"count": 2**53, "notBefore": FAR})),
    Deed(
        "as many failures as there can be",
        job_status(restarts={"failures": 2**53, "disruptions": 2**53, "resizes": 2**53}),
        goes_on=True,
    ),
    Deed("fewer than no replicas ready", job_status(replicas=-1, readyReplicas=-1), goes_on=True),
    Deed("workers that are null", job_status(workers=[None]), goes_on=True),
    Deed("half a last failure", job_status(lastFailure={"reason": "x"}), goes_on=True),
    Deed("a selector of every character", job_status(selector=EVERY_CHARACTER, ready=EVERY_CHARACTER), goes_on=True),
)
