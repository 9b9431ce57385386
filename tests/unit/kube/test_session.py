"""Requests on the wire, and every way in which they can fail."""

import asyncio

import pytest

from tests.support.fake_api import FakeApi
from tests.support.timers import FakeTimers
from tests.support.waiting import until
from trainyard.kube.errors import ApiError
from trainyard.kube.login import TokenSource
from trainyard.kube.resource import PODS, Resource
from trainyard.kube.session import METADATA, Endpoint, Session
from trainyard.kube.token_bucket import TokenBucket

JOBS = Resource("trainyard.dev", "v1alpha1", "trainingjobs", "TrainingJob")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (PODS.path(), "/api/v1/pods"),
        (PODS.path("ns", "x"), "/api/v1/namespaces/ns/pods/x"),
        (JOBS.path(), "/apis/trainyard.dev/v1alpha1/trainingjobs"),
        (JOBS.path("ns", "x", "status"), "/apis/trainyard.dev/v1alpha1/namespaces/ns/trainingjobs/x/status"),
    ],
)
def test_resource_paths(path: str, expected: str) -> None:
    assert path == expected


def test_resource_names() -> None:
    assert (PODS.api_version, JOBS.api_version) == ("v1", "trainyard.dev/v1alpha1")
    assert (PODS.qualified, JOBS.qualified) == ("pods", "trainingjobs.trainyard.dev")


async def test_each_request_is_observed(api: FakeApi) -> None:
    observed: list[tuple[str, int]] = []
    session = api.session(on_request=lambda method, status, _: observed.append((method, status)))
    await session.request("POST", PODS.path("ns"), body={"metadata": {"name": "x"}})
    with pytest.raises(ApiError) as caught:
        await session.request("GET", PODS.path("ns", "y"))
    assert caught.value.not_found
    api.fault(method="DELETE", drop=True, times=2)
    with pytest.raises(ApiError) as caught:
        await session.request("DELETE", PODS.path("ns", "x"))
    assert caught.value.status == 0
    assert observed == [("POST", 201), ("GET", 404), ("DELETE", 0)]


async def test_refused_connection_is_retryable() -> None:
    session = Session(Endpoint(server="http://127.0.0.1:1"))
    try:
        with pytest.raises(ApiError) as caught:
            await session.request("GET", "/version")
        assert (caught.value.status, caught.value.retryable) == (0, True)
        with pytest.raises(ApiError):
            async for _ in session.stream("/api/v1/pods", idle_timeout=1):
                pass
    finally:
        await session.close()


async def test_late_answer_is_a_timeout(api: FakeApi) -> None:
    fault = api.fault(delay=60)
    with pytest.raises(ApiError) as caught:
        await api.session().request("GET", PODS.path(), timeout=0.02)
    assert (caught.value.status, caught.value.reason) == (0, "Timeout")
    assert not fault.times


async def test_write_with_lost_answer_was_carried_out(api: FakeApi) -> None:
    api.fault(method="POST", lose_answer=True)
    with pytest.raises(ApiError) as caught:
        await api.session().request("POST", PODS.path("ns"), body={"metadata": {"name": "x"}})
    assert caught.value.status == 0
    assert len(api.cluster.objects(PODS)) == 1


async def test_retries_of_429_are_limited(api: FakeApi) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    api.fault(status=429, reason="TooManyRequests", retry_after=2, times=100)
    with pytest.raises(ApiError) as caught:
        await api.session(sleep=sleep).request("GET", PODS.path())
    assert waits == [2, 2, 2]
    assert caught.value.retry_after == 2


@pytest.mark.parametrize(("status", "retry_after"), [(429, 3600), (429, None), (503, 1)])
async def test_other_errors_are_not_retried(api: FakeApi, status: int, retry_after: float | None) -> None:
    api.fault(status=status, retry_after=retry_after)
    with pytest.raises(ApiError):
        await api.session().request("GET", PODS.path())
    assert len(api.calls) == 1


async def test_a_proxys_error_page_becomes_one_line(api: FakeApi) -> None:
    session = api.session()
    api.fault(text="<html>welcome</html>")
    with pytest.raises(ApiError, match="not JSON"):
        await session.request("GET", PODS.path())


async def test_rotated_token_is_used_at_once(api: FakeApi, timers: FakeTimers) -> None:
    token = ["Bearer one"]
    source = TokenSource(lambda: token[0], keep=30, clock=timers.time)
    session = Session(Endpoint(server=api.url, authorization=source))
    other = session.endpoint.open_client()
    try:
        await session.request("GET", PODS.path())
        token[0] = "Bearer two"
        await session.request("GET", PODS.path())
        timers.advance(31)
        await session.request("GET", PODS.path())
        async with other.get(api.url + PODS.path()):
            pass
    finally:
        await session.close()
        await other.close()
    assert [call.headers["Authorization"][-3:] for call in api.calls] == ["one", "one", "two", "two"]


async def test_unreadable_token_keeps_the_last_one(timers: FakeTimers, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[str | OSError] = ["Bearer one", OSError("no such file"), "Bearer two"]

    def read() -> str:
        match answers.pop(0):
            case OSError() as error:
                raise error
            case str() as header:
                return header

    source = TokenSource(read, keep=30, clock=timers.time)
    timers.advance(31)
    assert await source() == "Bearer one"
    assert "no such file" in caplog.text
    assert await source() == "Bearer one"
    timers.advance(31)
    assert await source() == "Bearer two"


async def test_many_requests_read_a_token_once(timers: FakeTimers) -> None:
    reads: list[None] = []

    def read() -> str:
        reads.append(None)
        return "Bearer x"

    source = TokenSource(read, keep=30, clock=timers.time)
    timers.advance(31)
    assert set(await asyncio.gather(*(source() for _ in range(20)))) == {"Bearer x"}
    assert len(reads) == 2


async def test_a_closed_watch_closes_its_connection(api: FakeApi) -> None:
    session = api.session()
    events = session.stream(PODS.path(), {"watch": "true", "resourceVersion": "100"}, idle_timeout=5)
    api.cluster.create(PODS, "ns", {"metadata": {"name": "x"}})
    assert (await anext(events))["type"] == "ADDED"
    assert len(api.watches) == 1
    await events.aclose()
    await until(lambda: api.watches[0].request.transport is None)


@pytest.mark.parametrize(
    ("no_proxy", "expected"),
    [
        ("", "http://proxy.invalid:3128"),
        ("server.invalid", None),
        (".invalid", None),
        ("other.invalid", "http://proxy.invalid:3128"),
    ],
)
async def test_environment_proxy_respects_no_proxy(
    no_proxy: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    client = Endpoint(server="https://server.invalid:6443").open_client()
    assert (client._default_proxy and str(client._default_proxy)) == expected
    assert not client.trust_env, "aiohttp would read ~/.netrc for each request"
    await client.close()


async def test_kubeconfig_proxy_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    client = Endpoint(server="https://server.invalid", proxy="http://own.invalid:1").open_client()
    assert str(client._default_proxy) == "http://own.invalid:1"
    await client.close()


async def test_writes_request_metadata_only(api: FakeApi) -> None:
    session = api.session()
    await session.request("POST", PODS.path("ns"), body={"metadata": {"name": "x"}}, accept=METADATA)
    await session.request("GET", PODS.path("ns", "x"))
    accepted = [call.headers["Accept"] for call in api.calls]
    assert accepted[0].startswith("application/json;as=PartialObjectMetadata;")
    assert accepted[1] == "application/json"


async def test_requests_above_the_budget_wait(api: FakeApi) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    timers = FakeTimers()
    session = api.session(budget=TokenBucket(10.0, 2.0, timers.time), sleep=sleep)
    for _ in range(4):
        await session.request("GET", PODS.path("ns"))
    assert waits == pytest.approx([0.1, 0.2])
    timers.advance(10)
    await session.request("GET", PODS.path("ns"))
    assert len(waits) == 2


async def test_watches_use_a_client_of_their_own(api: FakeApi) -> None:
    session = Session(Endpoint(server=api.url))
    params = {"watch": "true", "resourceVersion": "1"}
    tasks = []
    try:
        for _ in range(120):
            events = session.stream("/api/v1/pods", params, idle_timeout=60)
            tasks.append(asyncio.create_task(anext(events)))
        await until(lambda: len(api.watches) == 120)
        assert "items" in await session.request("GET", "/api/v1/pods", timeout=5)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await session.close()
