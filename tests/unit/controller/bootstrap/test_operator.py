"""The whole operator, from TrainingJob to pods and back, on a fake API server that misbehaves."""

import asyncio
from functools import partial

import pytest

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.api.status import TrainingJobStatus
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.kube.resource import EVENTS, PODS, SERVICES


@pytest.fixture
def lab(api: FakeApi) -> Lab:
    return Lab(api)


def reasons(api: FakeApi) -> list[str]:
    return [event["reason"] for event in api.cluster.objects(EVENTS, LAB)]


def notes(api: FakeApi) -> list[str]:
    """Return the notes in the order in which kubectl prints the events: that of their names."""
    return [event["note"] for event in api.cluster.objects(EVENTS, LAB)]


def noted(api: FakeApi, text: str) -> bool:
    return any(text in note for note in notes(api))


async def test_service_is_created_before_pods(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
    posts = [call.verb for call in api.writes if call.method == "POST" and "events" not in call.path]
    assert posts == ["POST services", "POST pods", "POST pods"]
    service = api.cluster.objects(SERVICES, LAB)[0]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


async def test_from_pending_to_complete(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")
        lab.ends("job-worker-0-1", 0)
        lab.ends("job-worker-1-1", 0)
        await lab.until_phase("Complete")
        await until(lambda: {"WorkersCreated", "WorkersSucceeded"} <= set(reasons(api)))
    assert lab.status()["restarts"] == {"failures": 0, "disruptions": 0, "resizes": 0}


async def test_failure_is_stored_before_pods_are_deleted(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")
        api.calls.clear()
        lab.ends("job-worker-1-1", 3, "no data")
        await lab.until_pods("job-worker-0-2", "job-worker-1-2")
        await until(lambda: "WorkerFailed" in reasons(api))
    verbs = [call.verb for call in api.writes if "events" not in call.path]
    assert verbs[0] == "PUT status"
    assert verbs.index("DELETE job-worker-1-1") < verbs.index("POST pods")
    assert lab.status()["lastFailure"]["message"] == "no data"
    assert lab.status()["restarts"]["failures"] == 1


async def test_new_pods_wait_for_old_ones(api: FakeApi, lab: Lab) -> None:
    api.cluster.graceful = {"pods"}
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        lab.runs("job-worker-0-1", "job-worker-1-1")
        lab.ends("job-worker-1-1", 3)
        await until(lambda: all("deletionTimestamp" in p["metadata"] for p in api.cluster.objects(PODS, LAB)))
        api.cluster.finish_deletion(PODS, LAB, "job-worker-1-1")
        await until(lambda: lab.status()["attempt"] == 2)
        assert lab.pods() == ["job-worker-0-1"]
        api.cluster.finish_deletion(PODS, LAB, "job-worker-0-1")
        await lab.until_pods("job-worker-0-2", "job-worker-1-2")


async def test_new_operator_continues_after_a_crash(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")
    lab.ends("job-worker-1-1", 3)
    async with operator(api):
        await lab.until_pods("job-worker-0-2", "job-worker-1-2")
    assert lab.status()["restarts"]["failures"] == 1


async def test_idle_job_causes_no_request(api: FakeApi, lab: Lab) -> None:
    async with operator(api) as op:
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")
        uid = api.cluster.get(TRAINING_JOBS, LAB, "job")["metadata"]["uid"]
        await until(lambda: (r := op.caches.job(uid)) and (v := r.view) and v.status.phase == "Running")
        await until(lambda: "WorkersCreated" in reasons(api))
        with api.no_calls():
            await op.reconciler.reconcile(uid)
            await op.reconciler.reconcile(uid)


async def test_job_of_another_controller_is_ignored(api: FakeApi, lab: Lab) -> None:
    async with operator(api) as op:
        job = lab.submit(managedBy="example.com/other")
        await until(lambda: op.caches.job(job["metadata"]["uid"]))
        await op.reconciler.reconcile(job["metadata"]["uid"])
    assert api.writes == []


async def test_lost_create_response_makes_no_second_pod(api: FakeApi, lab: Lab) -> None:
    api.fault(method="POST", path=".*/pods", lose_answer=True)
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")
    assert lab.status()["attempt"] == 1


async def test_conflict_causes_another_decision(api: FakeApi, lab: Lab) -> None:
    api.fault(method="PUT", path=".*/status", status=409, reason="Conflict")
    async with operator(api):
        lab.submit()
        await lab.until_phase("Pending")
    assert lab.status()["attempt"] == 1


async def test_server_errors_are_retried(api: FakeApi, lab: Lab) -> None:
    api.fault(method="POST", path=".*/services", status=500, times=2)
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")


async def test_exceeded_quota_is_reported_at_once(api: FakeApi, lab: Lab) -> None:
    message = 'pods "job-worker-0-1" is forbidden: exceeded quota: small'
    api.fault(method="POST", path=".*/pods", status=403, reason="Forbidden", message=message, times=100)
    async with operator(api):
        lab.submit(replicas=50)
        await until(lambda: lab.condition("Running").get("reason") == "QuotaExceeded")
        assert lab.condition("Running")["message"] == message
        await until(lambda: "QuotaExceeded" in reasons(api))
    # One write after the first reconcile and one after its own status write; not one per worker.
    assert len([call for call in api.writes if call.verb == "POST pods"]) <= 2


@pytest.mark.parametrize("more", ["", ', spec.nodeName: Invalid value: "pods \\"x\\" is forbidden: no"'])
async def test_invalid_template_fails_the_job(api: FakeApi, lab: Lab, more: str) -> None:
    """Also if the message quotes a value that reads like the message of an admission policy."""
    message = f'Pod "job-worker-0-1" is invalid: spec.containers[0].image: Required{more}'
    api.fault(method="POST", path=".*/pods", status=422, reason="Invalid", message=message)
    async with operator(api):
        lab.submit()
        await lab.until_phase("Failed")
    failed = lab.condition("Failed")
    assert (failed["reason"], "image: Required" in failed["message"]) == ("InvalidTemplate", True)


async def test_unbuildable_template_fails_only_its_job(api: FakeApi, lab: Lab) -> None:
    container = {"name": "main", "image": "example.com/x:1", "env": [{"value": "a variable without a name"}]}
    async with operator(api):
        lab.submit(template={"spec": {"containers": [container]}})
        lab.submit("neighbour", replicas=1)
        await lab.until_phase("Failed")
        await lab.until_pods("neighbour-worker-0-1")
    assert lab.condition("Failed")["reason"] == "InvalidTemplate"


async def test_unreadable_status_is_reset(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")
        api.cluster.set_status(TRAINING_JOBS, LAB, "job", startTime="0000-01-01T00:00:00Z")
        await until(lambda: lab.status().get("startTime", "").startswith("2"))
        await lab.until_phase("Running")
    assert lab.pods() == ["job-worker-0-1", "job-worker-1-1"]


async def test_service_name_conflict_is_reported(api: FakeApi, lab: Lab) -> None:
    api.cluster.create(SERVICES, LAB, {"metadata": {"name": "job"}})
    async with operator(api):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "NameConflict")
    assert lab.condition("Running")["message"] == "Service job exists and does not belong to this TrainingJob"
    assert lab.pods() == []


async def test_terminating_namespace_is_left_alone(api: FakeApi, lab: Lab) -> None:
    api.fault(method="POST", status=403, reason="Forbidden", causes=("NamespaceTerminating",), times=100)
    async with operator(api):
        lab.submit()
        await until(lambda: any(call.verb == "POST services" for call in api.calls))
    assert [call.verb for call in api.writes] == ["POST services"]


async def test_invalid_spec_is_reported_once(api: FakeApi, lab: Lab) -> None:
    async with operator(api) as op:
        job = lab.submit(replicas="three")
        await until(lambda: lab.condition("Stalled").get("reason") == "InvalidSpec")
        assert "spec.replicas" in lab.condition("Stalled")["message"]
        uid = job["metadata"]["uid"]
        await until(lambda: (r := op.caches.job(uid)) and r.status and r.status.conditions)
        with api.no_calls():
            await op.reconciler.reconcile(uid)
        lab.change(replicas=2)
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        await until(lambda: lab.condition("Stalled")["status"] == "False")


async def test_size_not_divisible_by_parallelism_is_ignored(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit(replicas=3, parallelism={"tensor": 2})
        await until(lambda: lab.condition("Stalled").get("reason") == "InvalidSpec")
        assert lab.pods() == []
        lab.change(replicas=2)
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        lab.change(replicas=3)
        await until(lambda: "keeps its 2 workers" in lab.condition("Stalled")["message"])
    assert lab.pods() == ["job-worker-0-1", "job-worker-1-1"]


async def test_invalid_job_of_another_controller_is_ignored(api: FakeApi, lab: Lab) -> None:
    async with operator(api) as op:
        job = lab.submit(replicas="three", managedBy="example.com/other")
        await until(lambda: op.caches.job(job["metadata"]["uid"]))
        await op.reconciler.reconcile(job["metadata"]["uid"])
    assert api.writes == []


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (400, "BadRequest", 'admission webhook "policy.example.com" denied the request: no'),
        (
            422,
            "Invalid",
            'pods "x" is forbidden: ValidatingAdmissionPolicy "calm" with binding "calm" denied request: no',
        ),
    ],
    ids=["a webhook", "an admission policy"],
)
async def test_policy_refusal_does_not_fail_the_job(
    api: FakeApi, lab: Lab, status: int, reason: str, message: str
) -> None:
    api.fault(method="POST", path=".*/pods", status=status, reason=reason, message=message, times=100)
    async with operator(api):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "PodsForbidden")
    assert lab.status()["phase"] == "Pending"


async def test_pod_without_owner_reference_is_ignored(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        copy = api.cluster.get(PODS, LAB, "job-worker-0-1")
        copy["metadata"] |= {"name": "a-copy", "ownerReferences": []}
        api.cluster.create(PODS, LAB, copy)
        lab.change(lifecycle={"suspend": True})
        await lab.until_pods("a-copy")


async def test_pods_of_other_namespaces_are_ignored(api: FakeApi, lab: Lab) -> None:
    """Anybody can write an owner reference across namespaces, but it has no effect."""
    async with operator(api) as op:
        job = lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")
        for place in (PODS, SERVICES):
            forged = api.cluster.objects(place, LAB)[0]
            forged["metadata"] |= {"namespace": "mallory"}
            if place == PODS:
                forged["metadata"]["name"] = "job-worker-0-2"
            api.cluster.create(place, "mallory", forged)
        api.cluster.delete(SERVICES, LAB, "job")
        uid = job["metadata"]["uid"]
        await until(lambda: op.caches.of(LAB).pods.count(uid) == 3)
        await until(lambda: api.cluster.objects(SERVICES, LAB))
        assert lab.pods() == ["job-worker-0-1", "job-worker-1-1"]
        assert (lab.status()["attempt"], lab.status()["replicas"]) == (1, 2)


async def test_service_without_label_blocks_nothing(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        await until(lambda: lab.status().get("internal", {}).get("launchedAttempt"))
        labels = dict.fromkeys(api.cluster.get(SERVICES, LAB, "job")["metadata"]["labels"])
        api.cluster.merge(SERVICES, LAB, "job", {"metadata": {"labels": labels}})
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")
        api.calls.clear()
        await asyncio.sleep(3.5)
        assert len(api.writes) <= 1, "it is not asked for each second"


async def test_pod_of_an_absurd_attempt_is_ignored(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        forged = api.cluster.get(PODS, LAB, "job-worker-0-1")
        forged["metadata"]["name"] = "job-worker-0-999999999999999"
        api.cluster.create(PODS, LAB, forged)
        lab.runs("job-worker-0-1", "job-worker-1-1")
        await lab.until_phase("Running")
        lab.ends("job-worker-1-1", 3)
        await until(lambda: {"job-worker-0-2", "job-worker-1-2"} < {*lab.pods()})
        assert lab.status()["attempt"] == 2


async def test_adopted_later_attempt_is_reported(api: FakeApi, lab: Lab) -> None:
    async with operator(api):
        lab.submit(replicas=1)
        await lab.until_pods("job-worker-0-1")
        later = api.cluster.get(PODS, LAB, "job-worker-0-1")
        later["metadata"]["name"] = "job-worker-0-9"
        api.cluster.create(PODS, LAB, later)
        # Beside a live pod of an earlier attempt it would be forged.
        api.cluster.delete(PODS, LAB, "job-worker-0-1")
        await until(lambda: "AttemptAdopted" in reasons(api))
        note = next(e["note"] for e in api.cluster.objects(EVENTS, LAB) if e["reason"] == "AttemptAdopted")
    assert note.startswith("workers are at attempt 9, and the stored status has attempt 1")


async def test_events_of_one_attempt_sort_by_time(api: FakeApi, lab: Lab) -> None:
    sizes = [5, 7, 6]
    async with operator(api):
        lab.submit(replicas=4, elastic={"minReplicas": 4, "maxReplicas": 8, "multipleOf": 4})
        await until(lambda: "WorkersCreated" in reasons(api))
        for size in sizes:
            lab.change(replicas=size)
            await until(partial(noted, api, f"replicas is {size}"))
    assert [note[:13] for note in notes(api) if note.startswith("replicas")] == [f"replicas is {n}" for n in sizes]


async def test_changing_refusal_message_keeps_the_backoff(api: FakeApi, lab: Lab) -> None:
    for number in range(20):
        message = f'admission webhook "policy" denied the request: no {number}'
        api.fault(method="POST", path=".*/pods", status=403, reason="Forbidden", message=message, times=1)
    async with operator(api):
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "PodsForbidden")
        await asyncio.sleep(1.5)
    # One more for the Service that was seen, and then none before the backoff is over.
    assert len([call for call in api.writes if call.verb == "POST pods"]) <= 2


async def test_ready_workers_share_status_writes(api: FakeApi, lab: Lab) -> None:
    names = sorted(f"job-worker-{index}-1" for index in range(30))

    def running(name: str) -> bool:
        return bool(api.cluster.get(PODS, LAB, name)["status"]["phase"] == "Running")

    async with operator(api):
        lab.submit(replicas=30)
        await lab.until_pods(*names)
        await lab.until_phase("Pending")
        before = len(api.writes)
        for name in names:
            lab.runs(name)
            await until(partial(running, name))
        await lab.until_phase("Running")
        writes = [call.verb for call in api.writes[before:] if "events" not in call.path]
    assert len(writes) < 10
    assert set(writes) == {"PUT status"}


@pytest.mark.parametrize("namesake", [True, False], ids=["a namesake is there", "no pod is there"])
async def test_job_that_only_the_cache_has_is_forgotten(api: FakeApi, lab: Lab, *, namesake: bool) -> None:
    async with operator(api) as op:
        uid = lab.submit()["metadata"]["uid"]
        await lab.until_phase("Pending")
        await until(lambda: (r := op.caches.job(uid)) and r.status and r.status.observed_generation)
        api.mute()
        api.cluster.delete(TRAINING_JOBS, LAB, "job")
        if namesake:
            lab.submit(replicas=3)
        record = op.caches.job(uid)
        assert record is not None
        assert not await op.reconciler._write_status(record, TrainingJobStatus().evolve(attempt=2))
        assert op.caches.job(uid) is None
        with api.no_calls():
            assert await op.reconciler.reconcile(uid) is None
