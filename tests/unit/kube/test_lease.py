"""The format of a Lease."""

import re

import pytest

from tests.support.fake_api import FakeApi
from trainyard.kube.errors import ApiError
from trainyard.kube.lease import LEASES, Lease, LeaseClient

MICROTIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.fixture
def client(api: FakeApi) -> LeaseClient:
    return LeaseClient(api.session(), "home", "trainyard")


async def test_lease_matches_the_kubernetes_format(api: FakeApi, client: LeaseClient) -> None:
    assert await client.read(within=5) is None
    lease = await client.take(None, "me", 15, within=5)
    spec = api.cluster.get(LEASES, "home", "trainyard")["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("me", 15, 0)
    assert MICROTIME.fullmatch(spec["acquireTime"])
    assert MICROTIME.fullmatch(spec["renewTime"])
    assert (lease.holder, lease.seconds, lease.transitions) == ("me", 15, 0)


async def test_renewal_keeps_acquire_time(client: LeaseClient) -> None:
    taken = await client.take(None, "me", 15, within=5)
    renewed = await client.take(taken, "me", 15, within=5)
    assert renewed.record["acquireTime"] == taken.record["acquireTime"]
    assert renewed.record != taken.record


async def test_change_of_holder_is_a_transition(client: LeaseClient) -> None:
    taken = await client.take(None, "me", 15, within=5)
    given = await client.release(taken, within=5)
    assert given.holder == ""
    assert (await client.take(given, "you", 15, within=5)).transitions == 1


async def test_only_one_of_two_writers_succeeds(client: LeaseClient) -> None:
    seen = await client.take(None, "me", 15, within=5)
    await client.take(seen, "you", 15, within=5)
    with pytest.raises(ApiError) as refused:
        await client.take(seen, "they", 15, within=5)
    assert refused.value.conflict
    with pytest.raises(ApiError) as late:
        await client.take(None, "they", 15, within=5)
    assert late.value.already_exists


@pytest.mark.parametrize("raw", [{}, {"spec": None}, {"spec": {"holderIdentity": None, "leaseTransitions": None}}])
def test_empty_lease_has_no_holder(raw: dict[str, object]) -> None:
    lease = Lease(raw)
    assert (lease.holder, lease.seconds, lease.transitions) == ("", 0, 0)
