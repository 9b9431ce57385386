"""An operator of some namespaces watches each separately, and none disturbs another."""

import re
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.resources import TRAINING_JOBS, job_record
from trainyard.kube.errors import ApiError
from trainyard.kube.permissions import Permission
from trainyard.kube.resource import PODS

if TYPE_CHECKING:
    from trainyard.controller.bootstrap.http_server import Ports

BOTH = ("lab", "office")


def denied(api: FakeApi, namespace: str, times: int = 10_000) -> Any:
    """Forbid all requests in a namespace, as if its Role or the whole namespace were missing."""
    message = f'x is forbidden: User "me" cannot list resource "x" in API group "" in the namespace "{namespace}"'
    path = f".*/namespaces/{namespace}/.*"
    return api.fault(method="GET", path=path, status=403, reason="Forbidden", message=message, times=times)


def submit(api: FakeApi, namespace: str) -> Any:
    spec = {"framework": "none", "template": {"spec": {"containers": [{"name": "main", "image": "x:1"}]}}}
    return api.cluster.create(TRAINING_JOBS, namespace, {"metadata": {"name": "job"}, "spec": spec})


def pods(api: FakeApi, namespace: str) -> list[str]:
    return [pod["metadata"]["name"] for pod in api.cluster.objects(PODS, namespace)]


async def test_only_configured_namespaces_are_watched(api: FakeApi) -> None:
    async with operator(api, namespaces=BOTH):
        for namespace in (*BOTH, "attic"):
            submit(api, namespace)
        await until(lambda: pods(api, "lab") and pods(api, "office"))
    assert pods(api, "attic") == []
    collections = [call.path for call in api.calls if re.search(r"/(pods|services|trainingjobs|events)\b", call.path)]
    assert [path for path in collections if not re.search(r"/namespaces/(lab|office)/", path)] == []


async def test_list_affects_only_its_namespace(api: FakeApi) -> None:
    async with operator(api, namespaces=BOTH) as op:
        jobs = [submit(api, namespace) for namespace in BOTH]
        await until(lambda: all(len(op.caches.of(name).pods) == 1 for name in BOTH))
        for scope in op.scopes:
            await scope.job_informer.relist()
            await scope.pods.refresh()
            await scope.services.refresh()
        assert [op.caches.job(job["metadata"]["uid"]) is not None for job in jobs] == [True, True]
        assert [len(op.caches.of(name).pods) for name in BOTH] == [1, 1]
        assert len(op.caches.jobs()) == 2


async def test_versions_are_tracked_per_namespace(api: FakeApi) -> None:
    """Otherwise a job would be decided on before its own last write is visible."""
    caches = Caches.empty(BOTH)
    caches.of("lab").pods.observe(500)
    assert (caches.of("lab").newest_versions()["pods"], caches.of("office").newest_versions()["pods"]) == (500, 0)


async def test_inaccessible_namespace_does_not_block_others(api: FakeApi) -> None:
    ports: list[Ports] = []
    closed = denied(api, "office")
    async with operator(api, ports, ready=False, namespaces=BOTH) as op, aiohttp.ClientSession() as client:
        submit(api, "lab")
        submit(api, "office")
        await until(lambda: pods(api, "lab"))
        async with client.get(f"http://127.0.0.1:{ports[0].health}/readyz") as answer:
            text = await answer.text()
            assert answer.status == 503
        sentence = (
            "the operator may not list pods in the namespace office: grant its service account the verb list on pods"
        )
        assert sentence in text
        assert "trainingjobs.trainyard.dev in the namespace office" in text
        assert "namespace lab" not in text
        async with client.get(f"http://127.0.0.1:{ports[0].metrics}/metrics") as answer:
            assert 'trainyard_forbidden_requests_total{resource="pods",verb="list"}' in await answer.text()
        assert pods(api, "office") == []
        closed.times = 0
        await until(lambda: pods(api, "office"))
        await until(lambda: not op.health.obstacles())


def test_job_is_found_in_any_namespace() -> None:
    caches = Caches.empty(BOTH)
    raw = {"metadata": {"uid": "u", "name": "job", "namespace": "office", "resourceVersion": "7", "generation": 1}}
    record = job_record({**raw, "spec": {}})
    caches.of("office").jobs.apply(record)
    assert caches.job("u") == record
    assert caches.job("v") is None
    assert caches.jobs() == [record]
    everywhere = Caches.empty()
    assert everywhere.of("lab") is everywhere.of("office")


async def test_recreated_namespace_is_served_again(api: FakeApi) -> None:
    """No single object of it is read before the next conflict: that permission would count as missing until then."""
    ports: list[Ports] = []
    async with operator(api, ports, namespaces=BOTH) as op, aiohttp.ClientSession() as client:
        job = submit(api, "lab")
        await until(lambda: pods(api, "lab"))
        message = 'x is forbidden: User "me" cannot get resource "x" in API group "" in the namespace "lab"'
        api.fault(method="GET", path=".*/trainingjobs/job", status=403, reason="Forbidden", message=message)
        record = op.caches.job(job["metadata"]["uid"])
        assert record is not None
        with pytest.raises(ApiError, match="forbidden"):
            await op.reconciler._read_again(record)
        assert Permission("get", TRAINING_JOBS.qualified, "lab") in op.health.permissions.missing()
        async with client.get(f"http://127.0.0.1:{ports[0].health}/readyz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
