from typing import Any

import pytest

from tests.support.fake_api import FakeApi
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import PODS

POD: dict[str, Any] = {"metadata": {"name": "x"}, "spec": {"containers": []}}


async def test_repeated_create_fails_with_already_exists(api: FakeApi) -> None:
    writer = Writer(api.session())
    made = await writer.create(PODS, "ns", POD)
    assert made["metadata"]["resourceVersion"] == str(api.cluster.version)
    with pytest.raises(ApiError) as caught:
        await writer.create(PODS, "ns", POD)
    assert caught.value.already_exists


async def test_a_delete_names_the_uid_it_means(api: FakeApi) -> None:
    writer = Writer(api.session())
    made = api.cluster.create(PODS, "ns", POD)
    assert await writer.delete(PODS, "ns", "x", uid="another") is None
    assert len(api.cluster.objects(PODS)) == 1, "the namesake lives"
    assert await writer.delete(PODS, "ns", "x", uid=made["metadata"]["uid"]) is not None
    assert api.cluster.objects(PODS) == []
    assert await writer.delete(PODS, "ns", "x", uid=made["metadata"]["uid"]) is None


async def test_a_graceful_delete_is_answered_with_the_object(api: FakeApi) -> None:
    api.cluster.graceful.add("pods")
    uid = api.cluster.create(PODS, "ns", POD)["metadata"]["uid"]
    writer = Writer(api.session())
    going = await writer.delete(PODS, "ns", "x", uid=uid, grace_seconds=5)
    assert going is not None
    assert going["metadata"]["deletionGracePeriodSeconds"] == 5
    assert await writer.delete(PODS, "ns", "x", uid=uid, grace_seconds=0)
    assert api.cluster.objects(PODS) == []


async def test_forced_deletion_names_the_uid(api: FakeApi) -> None:
    api.cluster.graceful.add("pods")
    api.cluster.create(PODS, "ns", POD)
    writer = Writer(api.session())
    assert await writer.delete(PODS, "ns", "x", uid="another", grace_seconds=0) is None
    assert api.calls[-1].body["preconditions"] == {"uid": "another"}
    assert api.calls[-1].body["gracePeriodSeconds"] == 0
    assert len(api.cluster.objects(PODS)) == 1, "one of the same name is left alone"


async def test_other_conflict_of_a_delete_is_raised(api: FakeApi) -> None:
    api.fault(method="DELETE", status=409, reason="Conflict", message="the object has been modified")
    with pytest.raises(ApiError):
        await Writer(api.session()).delete(PODS, "ns", "x", uid="1")


async def test_delete_all_takes_what_has_the_labels(api: FakeApi) -> None:
    for name, labels in (("a", {"job": "1"}), ("b", {"job": "2"})):
        api.cluster.create(PODS, "ns", {"metadata": {"name": name, "labels": labels}})
    api.cluster.create(PODS, "other", {"metadata": {"name": "a", "labels": {"job": "1"}}})
    await Writer(api.session()).delete_all(PODS, "ns", "job=1")
    left = [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in api.cluster.objects(PODS)]
    assert left == [("ns", "b"), ("other", "a")]


async def test_status_write_requires_the_decided_version(api: FakeApi) -> None:
    writer = Writer(api.session())
    read = api.cluster.create(PODS, "ns", POD)
    written = await writer.replace_status(
        PODS, "ns", "x", {**read, "spec": {"lost": 1}, "status": {"phase": "Running"}}
    )
    assert written["status"] == {"phase": "Running"}
    assert written["spec"] == POD["spec"], "the subresource leaves the rest alone"
    with pytest.raises(ApiError) as caught:
        await writer.replace_status(PODS, "ns", "x", {**read, "status": {"phase": "Failed"}})
    assert caught.value.conflict
    with pytest.raises(ValueError, match="resourceVersion"):
        await writer.replace_status(PODS, "ns", "x", {"metadata": {"name": "x"}, "status": {}})


async def test_merge_patch(api: FakeApi) -> None:
    api.cluster.create(PODS, "ns", POD)
    merged = await Writer(api.session()).merge(PODS, "ns", "x", {"metadata": {"labels": {"a": "b"}}})
    assert merged["metadata"]["labels"] == {"a": "b"}
    assert api.calls[-1].headers["Content-Type"] == "application/merge-patch+json"


async def test_get(api: FakeApi) -> None:
    writer = Writer(api.session())
    assert await writer.get(PODS, "ns", "x") is None
    api.cluster.create(PODS, "ns", POD)
    assert await writer.get(PODS, "ns", "x") is not None
