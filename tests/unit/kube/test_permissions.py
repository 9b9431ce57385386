"""What the account may not do, from the answers alone."""

import logging

import pytest

from tests.support.fake_api import FakeApi
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.permissions import Right, Rights, needed, remedy
from trainyard.kube.resource import EVENTS, PODS, Resource

JOBS = Resource("trainyard.dev", "v1alpha1", "trainingjobs", "TrainingJob")
WHO = 'User "system:serviceaccount:trainyard-system:trainyard"'
NO = f'pods is forbidden: {WHO} cannot create resource "pods" in API group "" in the namespace "lab"'


@pytest.mark.parametrize(
    ("method", "path", "watch", "right"),
    [
        ("GET", PODS.path(), False, Right("list", "pods", None)),
        ("GET", PODS.path(), True, Right("watch", "pods", None)),
        ("GET", PODS.path("lab"), False, Right("list", "pods", "lab")),
        ("GET", PODS.path("lab", "a"), False, Right("get", "pods", "lab")),
        ("POST", PODS.path("lab"), False, Right("create", "pods", "lab")),
        ("DELETE", PODS.path("lab", "a"), False, Right("delete", "pods", "lab")),
        ("GET", JOBS.path(), True, Right("watch", "trainingjobs.trainyard.dev", None)),
        ("GET", JOBS.path("lab"), True, Right("watch", "trainingjobs.trainyard.dev", "lab")),
        ("DELETE", JOBS.path("lab", "a"), False, Right("delete", "trainingjobs.trainyard.dev", "lab")),
        ("PUT", JOBS.path("lab", "a", "status"), False, Right("update", "trainingjobs.trainyard.dev/status", "lab")),
        ("PATCH", EVENTS.path("lab", "a"), False, Right("patch", "events.events.k8s.io", "lab")),
        ("GET", "/api/v1/namespaces/lab", False, Right("get", "namespaces", None)),
        ("GET", "/apis", False, Right("get", "/apis", None)),
        ("GET", "/api", False, Right("get", "/api", None)),
        ("GET", "/version", False, Right("get", "/version", None)),
        ("GET", "/apis/trainyard.dev/v1alpha1", False, Right("get", "trainyard.dev", None)),
    ],
)
def test_the_right_that_a_request_needs(method: str, path: str, watch: bool, right: Right) -> None:  # noqa: FBT001
    assert needed(method, path, watch=watch) == right


def test_the_remedy_names_verb_resource_and_place() -> None:
    assert remedy(Right("watch", "pods", "lab")) == (
        "the operator may not watch pods in the namespace lab: grant its service account the verb watch on pods there"
        ", or take the namespace from those it looks after if it was deleted"
    )


@pytest.mark.parametrize(
    ("message", "lacks"),
    [
        (NO, True),
        (f'pods is forbidden: {WHO} cannot list resource "pods" in API group "" at the cluster scope', True),
        (
            'pods "a" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can\'t',
            True,
        ),
        ('pods "a" is forbidden: exceeded quota: small, requested: pods=1', False),
        ('pods "a" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false', False),
        ('pods "a" is forbidden: unable to create new content in namespace lab because it is being terminated', False),
    ],
)
def test_a_missing_right_is_told_from_what_admission_refuses(message: str, *, lacks: bool) -> None:
    assert ApiError(403, "Forbidden", message).lacks_right is lacks
    assert not ApiError(409, "Conflict", message).lacks_right


async def test_each_is_said_once_and_counted_each_time(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    counted: list[Right] = []
    session = api.session()
    session.rights.on_refused = counted.append
    writer = Writer(session)
    api.fault(method="POST", status=403, reason="Forbidden", message=NO, times=3)
    for _ in range(3):
        with pytest.raises(ApiError):
            await writer.create(PODS, "lab", {"metadata": {"name": "a"}})
    missing = Right("create", "pods", "lab")
    assert counted == [missing] * 3
    assert session.rights.missing() == {missing: NO}
    await writer.create(PODS, "lab", {"metadata": {"name": "a"}})
    assert session.rights.missing() == {}
    said = [r.message for r in caplog.records if r.name.endswith("permissions")]
    assert len(said) == 2
    assert said[0].startswith(remedy(missing))
    assert said[1] == "the operator may create pods in the namespace lab now"


@pytest.mark.parametrize(
    ("status", "may"), [(404, True), (409, True), (422, True), (403, True), (500, False), (0, False)]
)
def test_an_error_about_the_object_shows_that_the_account_may_ask(status: int, *, may: bool) -> None:
    rights = Rights()
    path = PODS.path("lab")
    rights.refused("POST", path, ApiError(403, "Forbidden", NO))
    rights.refused("POST", path, ApiError(status, "Whatever", "exceeded quota"))
    assert (rights.missing() == {}) is may


async def test_a_watch_that_opens_is_granted(api: FakeApi) -> None:
    session = api.session()
    path = PODS.path("lab")
    session.rights.refused("GET", path, ApiError(403, "Forbidden", NO), watch=True)
    stream = session.stream(path, {"watch": "true", "resourceVersion": "100"}, idle_timeout=5)
    api.cluster.create(PODS, "lab", {"metadata": {"name": "a"}})
    await anext(stream)
    await stream.aclose()
    assert session.rights.missing() == {}
