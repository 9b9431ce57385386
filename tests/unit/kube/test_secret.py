"""The format of a Secret."""

import pytest

from tests.support.fake_api import FakeApi
from tests.support.fake_cluster import place_of
from trainyard.kube.errors import ApiError
from trainyard.kube.secret import SECRETS, Secret, SecretClient

HELD = {"metadata": {"name": "tls", "namespace": "home", "labels": {"a": "b"}}, "type": "Opaque"}


@pytest.fixture
def client(api: FakeApi) -> SecretClient:
    return SecretClient(api.session(), "home", "tls")


async def test_missing_secret_is_none(client: SecretClient) -> None:
    assert await client.read() is None


async def test_other_keys_and_labels_stay(api: FakeApi, client: SecretClient) -> None:
    api.cluster.create(place_of(SECRETS), "home", {**HELD, "data": {"own": "eA=="}})
    seen = await client.read()
    assert seen is not None
    await client.replace(seen, {"tls.crt": b"pem"})
    stored = api.cluster.get(SECRETS, "home", "tls")
    assert (stored["data"], stored["metadata"]["labels"]) == ({"own": "eA==", "tls.crt": "cGVt"}, {"a": "b"})
    read = await client.read()
    assert read is not None
    assert read.data == {"own": b"x", "tls.crt": b"pem"}


async def test_only_one_of_two_writers_succeeds(api: FakeApi, client: SecretClient) -> None:
    api.cluster.create(place_of(SECRETS), "home", HELD)
    seen = await client.read()
    assert seen is not None
    await client.replace(seen, {"tls.crt": b"first"})
    with pytest.raises(ApiError) as refused:
        await client.replace(seen, {"tls.crt": b"second"})
    assert refused.value.conflict


def test_data_may_be_absent_or_malformed() -> None:
    assert Secret({}).data == Secret({"data": None}).data == {}
    assert Secret({"data": {"tls.crt": "%"}}).data == {"tls.crt": b""}
