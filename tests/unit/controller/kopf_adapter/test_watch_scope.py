"""The cache of TrainingJobs."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from tests.support.waiting import until
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.controller.kopf_adapter import shell, watch_scope as feed_module
from trainyard.controller.kopf_adapter.watch_scope import JobInformer
from trainyard.controller.reconcile.resources import TRAINING_JOBS, JobRecord
from trainyard.kube.errors import ApiError
from trainyard.kube.session import Endpoint, Session
from trainyard.kube.store import Store

LIST = {"method": "GET", "path": ".*/trainingjobs"}


@asynccontextmanager
async def feeding(api: FakeApi) -> AsyncIterator[tuple[JobInformer, list[str]]]:
    session, queued = Session(Endpoint(server=api.url)), list[str]()
    jobs: Store[JobRecord, str] = Store(lambda job: job.uid)
    try:
        yield JobInformer(session, None, jobs, queued.append, 300), queued
    finally:
        await session.close()


async def test_expired_page_token_restarts_the_list(api: FakeApi) -> None:
    uids = {Lab(api).submit(f"job-{number}")["metadata"]["uid"] for number in range(3)}
    api.fault(**LIST, text=json.dumps({"metadata": {"resourceVersion": "1", "continue": "stale"}, "items": []}))
    async with feeding(api) as (feed, queued):
        await feed.relist()
    assert set(queued) == uids
    assert [len(call.query) for call in api.calls] == [1, 2, 0], "a page, the next one in vain, all of it at once"


@pytest.mark.parametrize(
    "text", ["{}", '{"metadata": null}', "[]", "nonsense", '{"metadata": {"resourceVersion": ""}}']
)
async def test_malformed_list_changes_nothing(api: FakeApi, text: str) -> None:
    Lab(api).submit()
    async with feeding(api) as (feed, _):
        await feed.relist()
        api.fault(**LIST, text=text)
        with pytest.raises(ApiError):
            await feed.relist()
        assert len(feed.jobs) == 1


async def test_jobs_are_listed_often_without_watch_permission(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "WATCH_FORBIDDEN_RELIST_SECONDS", 0.01)
    path = TRAINING_JOBS.path()
    refusal = 'trainingjobs is forbidden: User "me" cannot watch resource "trainingjobs" in API group "trainyard.dev"'
    async with feeding(api) as (feed, queued):
        running = asyncio.create_task(feed.run())
        await feed.synced.wait()
        feed.session.permissions.refused("GET", path, ApiError(403, "Forbidden", refusal), watch=True)
        uid = Lab(api).submit()["metadata"]["uid"]
        await until(lambda: queued == [uid])
        running.cancel()


async def test_known_versions_cause_no_reconcile(api: FakeApi) -> None:
    raw: dict[str, Any] = Lab(api).submit()
    async with feeding(api) as (feed, queued):
        feed.on_event("ADDED", raw)
        feed.on_event(None, raw)
        assert queued == [raw["metadata"]["uid"]]
        changed = api.cluster.merge(TRAINING_JOBS, LAB, "job", {"spec": {"replicas": 3}})
        feed.on_event("MODIFIED", changed)
        feed.on_event("MODIFIED", raw)
        assert len(queued) == 2
        feed.on_event("DELETED", changed)
        feed.on_event("MODIFIED", changed)
        assert (len(queued), len(feed.jobs)) == (3, 0)


async def test_list_neither_copies_nor_collects_jobs(api: FakeApi) -> None:
    """A tenant's jobs are large: a page has few, and a later list keeps the record of each unchanged job."""
    uids = [Lab(api).submit(f"job-{number}")["metadata"]["uid"] for number in range(60)]
    async with feeding(api) as (feed, _):
        await feed.relist()
        before = {uid: feed.jobs.get(uid) for uid in uids}
        await feed.relist()
        assert all(feed.jobs.get(uid) is record is not None for uid, record in before.items())
    assert [call.query["limit"] for call in api.calls] == ["50"] * 4
    assert shell.settings().watching.chunk_size == 50
