"""Missing permissions, from the answers of the API server."""

import logging

import pytest

from tests.support.fake_api import FakeApi
from trainyard.kube.apply import Writer
from trainyard.kube.errors import ApiError
from trainyard.kube.permissions import Permission, PermissionTracker, remedy, required_permission
from trainyard.kube.resource import EVENTS, PODS, Resource

JOBS = Resource("trainyard.dev", "v1alpha1", "trainingjobs", "TrainingJob")
WHO = 'User "system:serviceaccount:trainyard-system:trainyard"'
NO = f'pods is forbidden: {WHO} cannot create resource "pods" in API group "" in the namespace "lab"'


@pytest.mark.parametrize(
    ("method", "path", "watch", "permission"),
    [
        ("GET", PODS.path(), False, Permission("list", "pods", None)),
        ("GET", PODS.path(), True, Permission("watch", "pods", None)),
        ("GET", PODS.path("lab"), False, Permission("list", "pods", "lab")),
        ("GET", PODS.path("lab", "a"), False, Permission("get", "pods", "lab")),
        ("POST", PODS.path("lab"), False, Permission("create", "pods", "lab")),
        ("DELETE", PODS.path("lab", "a"), False, Permission("delete", "pods", "lab")),
        ("DELETE", PODS.path("lab"), False, Permission("deletecollection", "pods", "lab")),
        ("GET", JOBS.path(), True, Permission("watch", "trainingjobs.trainyard.dev", None)),
        ("GET", JOBS.path("lab"), True, Permission("watch", "trainingjobs.trainyard.dev", "lab")),
        ("DELETE", JOBS.path("lab", "a"), False, Permission("delete", "trainingjobs.trainyard.dev", "lab")),
        (
            "PUT",
            JOBS.path("lab", "a", "status"),
            False,
            Permission("update", "trainingjobs.trainyard.dev/status", "lab"),
        ),
        ("PATCH", EVENTS.path("lab", "a"), False, Permission("patch", "events.events.k8s.io", "lab")),
        ("GET", "/api/v1/namespaces/lab", False, Permission("get", "namespaces", None)),
        ("GET", "/apis", False, Permission("get", "/apis", None)),
        ("GET", "/api", False, Permission("get", "/api", None)),
        ("GET", "/version", False, Permission("get", "/version", None)),
        ("GET", "/apis/trainyard.dev/v1alpha1", False, Permission("get", "trainyard.dev", None)),
    ],
)
def test_permission_required_by_request(method: str, path: str, watch: bool, permission: Permission) -> None:  # noqa: FBT001
    assert required_permission(method, path, watch=watch) == permission


def test_remedy_names_verb_resource_and_namespace() -> None:
    assert remedy(Permission("watch", "pods", "lab")) == (
        "the operator may not watch pods in the namespace lab: grant its service account the verb watch on pods there"
        ", or remove the namespace from the operator's settings if it was deleted"
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
def test_missing_permission_differs_from_admission_error(message: str, *, lacks: bool) -> None:
    assert ApiError(403, "Forbidden", message).permission_denied is lacks
    assert not ApiError(409, "Conflict", message).permission_denied


async def test_denial_is_logged_once_and_counted_each_time(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    counted: list[Permission] = []
    session = api.session()
    session.permissions.on_refused = counted.append
    writer = Writer(session)
    api.fault(method="POST", status=403, reason="Forbidden", message=NO, times=3)
    for _ in range(3):
        with pytest.raises(ApiError):
            await writer.create(PODS, "lab", {"metadata": {"name": "a"}})
    missing = Permission("create", "pods", "lab")
    assert counted == [missing] * 3
    assert session.permissions.missing() == {missing: NO}
    await writer.create(PODS, "lab", {"metadata": {"name": "a"}})
    assert session.permissions.missing() == {}
    logged = [r.message for r in caplog.records if r.name.endswith("permissions")]
    assert len(logged) == 2
    assert logged[0].startswith(remedy(missing))
    assert logged[1] == "missing permission was granted permission='create pods in the namespace lab'"


@pytest.mark.parametrize(
    ("status", "may"), [(404, True), (409, True), (422, True), (403, True), (500, False), (0, False)]
)
def test_error_about_object_proves_permission(status: int, *, may: bool) -> None:
    permissions = PermissionTracker()
    path = PODS.path("lab")
    permissions.refused("POST", path, ApiError(403, "Forbidden", NO))
    permissions.refused("POST", path, ApiError(status, "Whatever", "exceeded quota"))
    assert (permissions.missing() == {}) is may


async def test_opened_watch_proves_permission(api: FakeApi) -> None:
    session = api.session()
    path = PODS.path("lab")
    session.permissions.refused("GET", path, ApiError(403, "Forbidden", NO), watch=True)
    stream = session.stream(path, {"watch": "true", "resourceVersion": "100"}, idle_timeout=5)
    api.cluster.create(PODS, "lab", {"metadata": {"name": "a"}})
    await anext(stream)
    await stream.aclose()
    assert session.permissions.missing() == {}
