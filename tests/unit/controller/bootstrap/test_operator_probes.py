"""Probes and metrics of a running operator."""

import itertools
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.support.fake_api import FakeApi
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.kube.resource import EVENTS

if TYPE_CHECKING:
    from trainyard.controller.bootstrap.http_server import Ports


@pytest.fixture
def lab(api: FakeApi) -> Lab:
    return Lab(api)


def reasons(api: FakeApi) -> list[str]:
    return [event["reason"] for event in api.cluster.objects(EVENTS, LAB)]


async def test_probes_and_metrics(api: FakeApi, lab: Lab) -> None:
    ports: list[Ports] = []
    async with operator(api, ports), aiohttp.ClientSession() as client:
        lab.submit()
        await lab.until_pods("job-worker-0-1", "job-worker-1-1")
        metrics, health = (f"http://127.0.0.1:{port}" for port in ports[0])
        for path in ("healthz", "readyz"):
            async with client.get(f"{health}/{path}") as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")
        async with client.get(f"{metrics}/metrics") as answer:
            text = await answer.text()
    assert 'trainyard_jobs{framework="none",phase="Pending"} 1.0' in text
    assert 'trainyard_restarts_total{cause="failure"} 0.0' in text


async def test_stale_watch_fails_the_probes(api: FakeApi) -> None:
    ports: list[Ports] = []
    async with operator(api, ports) as op, aiohttp.ClientSession() as client:
        op.scopes[0].pods.clock = itertools.count(1e12, 3600).__next__  # an hour since its last event
        for path in ("healthz", "readyz"):
            async with client.get(f"http://127.0.0.1:{ports[0].health}/{path}") as answer:
                assert answer.status == 503
                assert "the watch on pods in all namespaces has been silent" in await answer.text()


async def test_ports_serve_nothing_of_each_other(api: FakeApi) -> None:
    ports: list[Ports] = []
    async with operator(api, ports), aiohttp.ClientSession() as client:
        for port, paths in ((ports[0].metrics, ("healthz", "readyz")), (ports[0].health, ("metrics",))):
            for path in paths:
                async with client.get(f"http://127.0.0.1:{port}/{path}") as answer:
                    assert answer.status == 404
