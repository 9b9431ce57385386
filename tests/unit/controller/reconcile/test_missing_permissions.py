"""A permission that is missing at run time is reported and counted, and granting it is enough. Never a crash or a hot
loop.
"""

from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.support.fake_api import FakeApi
from tests.support.faults import Fault
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.controller.bootstrap.operator import Operator
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.kube.permissions import Permission
from trainyard.kube.resource import EVENTS, PODS

if TYPE_CHECKING:
    from trainyard.controller.bootstrap.http_server import Ports

BOTH = ("job-worker-0-1", "job-worker-1-1")


@pytest.fixture
def lab(api: FakeApi) -> Lab:
    return Lab(api)


def deny(api: FakeApi, method: str, verb: str, resource: str, path: str) -> Fault:
    message = f'x is forbidden: User "me" cannot {verb} resource "{resource}" in API group "" in the namespace "lab"'
    return api.fault(method=method, path=path, status=403, reason="Forbidden", message=message, times=10_000)


def events(api: FakeApi) -> list[str]:
    return [event["note"] for event in api.cluster.objects(EVENTS, LAB) if event["reason"] == "PermissionDenied"]


async def again(op: Operator, api: FakeApi, job: str = "job") -> None:
    """Run the reconcile that would follow some seconds later."""
    op.loop._queue.add(api.cluster.get(TRAINING_JOBS, LAB, job)["metadata"]["uid"])


@pytest.mark.parametrize(
    ("resource", "path"), [("pods", ".*/namespaces/lab/pods"), ("services", ".*/namespaces/lab/services")]
)
async def test_forbidden_creation_is_the_condition_reason(api: FakeApi, lab: Lab, resource: str, path: str) -> None:
    fault = deny(api, "POST", "create", resource, path)
    ports: list[Ports] = []
    async with operator(api, ports) as op, aiohttp.ClientSession() as client:
        lab.submit()
        await until(lambda: lab.condition("Running").get("reason") == "PermissionDenied")
        message = lab.condition("Running")["message"]
        assert f'cannot create resource "{resource}"' in message
        assert "grant it to continue" in message
        await until(lambda: events(api) == [message])
        assert list(op.health.permissions.missing()) == [Permission("create", resource, LAB)]
        async with client.get(f"http://127.0.0.1:{ports[0].metrics}/metrics") as answer:
            count = f'trainyard_forbidden_requests_total{{resource="{resource}",verb="create"}}'
            assert count in await answer.text()
        async with client.get(f"http://127.0.0.1:{ports[0].health}/readyz") as answer:
            assert answer.status == 200, "other jobs may be well"
        fault.times = 0
        await again(op, api)
        await lab.until_pods(*BOTH)
        await until(lambda: not op.health.permissions.missing())


async def test_forbidden_deletion_of_old_pods(api: FakeApi, lab: Lab) -> None:
    async with operator(api) as op:
        lab.submit()
        await lab.until_pods(*BOTH)
        lab.runs(*BOTH)
        await lab.until_phase("Running")
        fault = deny(api, "DELETE", "delete", "pods", ".*/pods/.*")
        lab.ends("job-worker-1-1", 3)
        await until(lambda: lab.condition("Running").get("reason") == "PermissionDenied")
        assert (lab.status()["attempt"], lab.status()["restarts"]["failures"]) == (2, 1)
        assert lab.pods() == [*BOTH], "no new worker beside an old one"
        fault.times = 0
        await again(op, api)
        await lab.until_pods("job-worker-0-2", "job-worker-1-2")


async def test_forbidden_deletion_of_finished_pods(api: FakeApi, lab: Lab) -> None:
    async with operator(api) as op:
        lab.submit(lifecycle={"cleanPods": "All"})
        await lab.until_pods(*BOTH)
        fault = deny(api, "DELETE", "delete", "pods", ".*/pods/.*")
        for pod in BOTH:
            lab.ends(pod, 0)
        await until(lambda: lab.condition("Stalled").get("reason") == "PermissionDenied")
        await until(lambda: len(events(api)) == 1)
        assert lab.condition("Complete")["status"] == "True"
        fault.times = 0
        await again(op, api)
        await lab.until_pods()
        await until(lambda: lab.condition("Stalled")["status"] == "False")


async def test_forbidden_deletion_of_expired_job(api: FakeApi, lab: Lab) -> None:
    fault = deny(api, "DELETE", "delete", "trainingjobs", ".*/trainingjobs/.*")
    async with operator(api) as op:
        lab.submit(lifecycle={"ttlSecondsAfterFinished": 0})
        await lab.until_pods(*BOTH)
        for pod in BOTH:
            lab.ends(pod, 0)
        await until(lambda: lab.condition("Stalled").get("reason") == "PermissionDenied")
        assert 'cannot delete resource "trainingjobs"' in lab.condition("Stalled")["message"]
        fault.times = 0
        await again(op, api)
        await until(lambda: not api.cluster.objects(TRAINING_JOBS, LAB))


async def test_forbidden_status_write_records_an_event(api: FakeApi, lab: Lab) -> None:
    fault = deny(api, "PUT", "update", "trainingjobs/status", ".*/status")
    async with operator(api) as op:
        lab.submit()
        await until(lambda: len(events(api)) == 1)
        assert 'cannot update resource "trainingjobs/status"' in events(api)[0]
        assert list(op.health.permissions.missing()) == [Permission("update", "trainingjobs.trainyard.dev/status", LAB)]
        fault.times = 0
        await lab.until_phase("Pending")
        lab.runs(*BOTH)
        await lab.until_phase("Running")


async def test_forbidden_events_stop_nothing_else(api: FakeApi, lab: Lab) -> None:
    deny(api, "POST", "create", "events", ".*/events")
    async with operator(api) as op:
        lab.submit()
        await lab.until_pods(*BOTH)
        lab.runs(*BOTH)
        await lab.until_phase("Running")
        await until(op.health.permissions.missing)
        assert list(op.health.permissions.missing()) == [Permission("create", "events.events.k8s.io", LAB)]


@pytest.mark.parametrize(
    ("verb", "resource"),
    [(verb, resource) for verb in ("list", "watch") for resource in ("pods", "services", "trainingjobs.trainyard.dev")],
)
async def test_forbidden_watch_fails_readiness_but_not_liveness(
    api: FakeApi, lab: Lab, verb: str, resource: str
) -> None:
    plural = resource.partition(".")[0]
    message = f'x is forbidden: User "me" cannot {verb} resource "{plural}" in API group "" at the cluster scope'
    fault = api.fault(
        method="GET",
        path=f".*/{plural}",
        watch=verb == "watch",
        status=403,
        reason="Forbidden",
        message=message,
        times=10_000,
    )
    ports: list[Ports] = []
    async with operator(api, ports, ready=False, stale_seconds=1000) as op, aiohttp.ClientSession() as client:
        missing = Permission(verb, resource, None)
        await until(lambda: missing in op.health.permissions.missing())
        for scope in op.scopes:
            scope.pods.clock = scope.services.clock = scope.job_informer.clock = lambda: 1e9
        async with client.get(f"http://127.0.0.1:{ports[0].health}/readyz") as answer:
            text = await answer.text()
            assert answer.status == 503
        assert f"grant its service account the verb {verb} on {resource}" in text
        stale = [line for line in op.health.problems() if f"the watch on {resource} in " in line]
        assert stale == [], "a restart would not help"
        fault.times = 0
        await until(lambda: missing not in op.health.permissions.missing())
        assert lab.pods() == []


async def test_many_refusals_cause_few_requests(api: FakeApi, lab: Lab) -> None:
    deny(api, "POST", "create", "pods", ".*/namespaces/lab/pods")
    async with operator(api):
        lab.submit(replicas=100)
        await until(lambda: lab.condition("Running").get("reason") == "PermissionDenied")
        await until(lambda: len(events(api)) == 1)
    assert len([call for call in api.writes if call.verb == "POST pods"]) <= 3
    assert api.cluster.objects(PODS, LAB) == []


async def test_forbidden_stop_deletes_pods(api: FakeApi, lab: Lab) -> None:
    deny(api, "PATCH", "patch", "pods", ".*/pods/.*")
    async with operator(api):
        lab.submit(recovery={"maxRestarts": 0})
        await lab.until_pods(*BOTH)
        lab.runs(*BOTH)
        await lab.until_phase("Running")
        lab.ends("job-worker-1-1", 3)
        await lab.until_phase("Failed")
        await lab.until_pods("job-worker-1-1")
