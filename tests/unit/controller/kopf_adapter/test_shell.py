"""kopf inside the process: when it may start, and what happens to the rest when it stops."""

import asyncio
import os
import signal
from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from tests.unit.controller.conftest import operator, process
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.controller.bootstrap.operator import KopfStoppedError
from trainyard.controller.kopf_adapter import shell
from trainyard.controller.reconcile.resources import TRAINING_JOBS

JOBS = ".*/trainingjobs"


def jobs_are_watched(api: FakeApi) -> bool:
    return any(watch.place[2] == "trainingjobs" for watch in api.watches)


async def test_crd_installed_after_start_is_watched(api: FakeApi) -> None:
    """kopf discovers the kinds only once."""
    api._resources = [resource for resource in api._resources if resource != TRAINING_JOBS]
    missing = api.fault(method="GET", path=JOBS, status=404, reason="NotFound", times=10_000)
    async with operator(api, ready=False):
        await until(lambda: missing.times < 10_000)
        api._resources = [*api._resources, TRAINING_JOBS]
        missing.times = 0
        await until(lambda: jobs_are_watched(api))
        lab = Lab(api)
        lab.submit(replicas=1)
        await lab.until_pods("job-worker-0-1")


async def test_process_exits_when_kopf_stops(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(*_: Any, leaving: asyncio.Event, **__: Any) -> None:
        leaving.set()
        await asyncio.Event().wait()

    async def outlive() -> None:
        async with process(api, leader_election=False) as op:
            await until(lambda: op.session._client is None or op.session._client.closed)

    monkeypatch.setattr(shell, "run", run)
    with pytest.raises(KopfStoppedError):
        await outlive()


@pytest.mark.parametrize("status", [400, 404])
async def test_recreated_crd_is_watched_again(api: FakeApi, status: int) -> None:
    """kopf would stop after such an answer."""
    async with operator(api):
        await until(lambda: jobs_are_watched(api))
        away = api.fault(method="GET", path=JOBS, status=status, reason="NotFound", times=3)
        api.cut()
        await until(lambda: not away.times)
        lab = Lab(api)
        lab.submit(replicas=1)
        await lab.until_pods("job-worker-0-1")


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"ERROR","object":{"code":500,"message":"etcd is away"}}',
        '{"type":"ERROR","object":{"code":504,"message":"Too large resource version"}}',
        '{"type":"ERROR","object":null}',
        '{"type":"ERROR"}',
        '{"type":"MODIFIED"}',
        '{"type":"MODIFIED","object":{}}',
        '{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"7"}}}',
        '{"type":"MODIFIED","object":{"metadata":{"uid":"1","resourceVersion":"new"}}}',
        "[1, 2]",
        "<html>",
        '{"type":"MODIFIED","object":{"meta',
    ],
)
@pytest.mark.parametrize("end", ["\n", ""], ids=["a line", "a torso"])
async def test_malformed_event_causes_a_relist(api: FakeApi, line: str, end: str) -> None:
    async with operator(api):
        await until(lambda: jobs_are_watched(api))
        nonsense = api.fault(method="GET", path=JOBS, watch=True, text=line + end)
        api.cut()
        await until(lambda: not nonsense.times)
        lab = Lab(api)
        lab.submit(replicas=1)
        await lab.until_pods("job-worker-0-1")


async def test_job_deleted_during_a_watch_gap_is_forgotten(api: FakeApi) -> None:
    """kopf lists again, and reports nothing of objects that the list lacks."""
    async with operator(api) as op:
        await until(lambda: jobs_are_watched(api))
        lab = Lab(api)
        uid = lab.submit(replicas=1)["metadata"]["uid"]
        await lab.until_pods("job-worker-0-1")
        api.mute()
        api.cluster.delete(TRAINING_JOBS, LAB, "job")
        api.cluster.compact()
        api.cut()
        await until(lambda: op.caches.job(uid) is None)


async def test_short_watches_restart_once_a_second(api: FakeApi) -> None:
    bookmark = '{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}\n'
    async with operator(api):
        await until(lambda: jobs_are_watched(api))
        short = api.fault(method="GET", path=JOBS, watch=True, text=bookmark, times=1000)
        api.cut()
        await asyncio.sleep(2.5)
    assert 1 <= 1000 - short.times <= 4


@pytest.mark.parametrize("begun", [False, True])
async def test_signal_stops_the_process_at_any_time(api: FakeApi, *, begun: bool) -> None:
    """The first process of a container is not stopped by a signal without a handler."""
    missing = api.fault(method="GET", path=JOBS, status=404, reason="NotFound", times=0 if begun else 10_000)
    stop = asyncio.Event()
    async with operator(api, ready=begun, stop=stop):
        await until(lambda: jobs_are_watched(api) if begun else missing.times < 10_000)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(stop.is_set)


async def test_expired_watch_restarts_without_a_version(api: FakeApi) -> None:
    async with operator(api):
        await until(lambda: jobs_are_watched(api))
        lab = Lab(api)
        lab.submit("one", replicas=1)
        await lab.until_pods("one-worker-0-1")
        gone = api.fault(method="GET", path=JOBS, watch=True, status=410, reason="Expired")
        api.cut()
        await until(lambda: not gone.times)
        lab.submit("two", replicas=1)
        await lab.until_pods("one-worker-0-1", "two-worker-0-1")
    versions = ["resourceVersion" in call.query for call in api.calls if call.watch and "trainingjobs" in call.path]
    assert versions[:3] == [True, True, False]
