"""Track permissions that the operator's account lacks, from the answers of the API server. Decides nothing."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from typing_extensions import override

from trainyard.kube.errors import ApiError
from trainyard.kube.resource import namespace_label

_LOG = logging.getLogger(__name__)
_AUTHORIZED_STATUSES = frozenset({400, 403, 404, 409, 410, 422})
"""HTTP statuses of errors about the object: the server checked the account's permission before."""
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, slots=True, order=True)
class Permission:
    """A verb on a resource that a Role grants, in one namespace or in all of them (None)."""

    verb: str
    resource: str
    """As `kubectl create role --resource` takes it: `pods`, `trainingjobs.trainyard.dev/status`."""
    namespace: str | None

    @override
    def __str__(self) -> str:
        return f"{self.verb} {self.resource} in {namespace_label(self.namespace)}"


def required_permission(method: str, path: str, *, watch: bool = False) -> Permission:
    """Return the permission that a request needs, by its method and its path on the server."""
    root, *parts = path.strip("/").split("/")
    group = parts.pop(0) if root == "apis" and parts else ""
    plural, name, subresource, namespace = "", "", "", None
    if len(parts) > 3 and parts[1] == "namespaces":
        namespace, parts = parts[2], [parts[0], *parts[3:]]
    _, plural, name, subresource, *_ = [*parts, "", "", "", ""]
    resource = ".".join(part for part in (plural, group) if part) or path
    verb = _VERBS.get(method, method.lower())
    if method == "GET":
        verb = "get" if name or not plural else "watch" if watch else "list"
    elif method == "DELETE" and not name:
        verb = "deletecollection"
    return Permission(verb, f"{resource}/{subresource}" if subresource else resource, namespace)


@dataclass(slots=True)
class PermissionTracker:
    """The permissions that are missing now. Each is logged once when it is denied, and once when it is granted
    again.
    """

    on_refused: Callable[[Permission], None] = lambda _: None
    """Called for each request that the API server denies because a permission is missing."""
    _missing: dict[Permission, str] = field(default_factory=dict, init=False)

    def refused(self, method: str, path: str, error: ApiError, *, watch: bool = False) -> None:
        """Record the error of a request. An error about the object itself shows that the permission is granted."""
        if not error.permission_denied:
            if error.status in _AUTHORIZED_STATUSES:
                self.granted(method, path, watch=watch)
            return
        permission = required_permission(method, path, watch=watch)
        self.on_refused(permission)
        if permission not in self._missing:
            _LOG.error(f"{remedy(permission)}; retrying until it is granted error={error.message!r}")
        self._missing[permission] = error.message

    def granted(self, method: str, path: str, *, watch: bool = False) -> None:
        """Record a request that succeeded."""
        if not self._missing:
            return
        permission = required_permission(method, path, watch=watch)
        if self._missing.pop(permission, None) is not None:
            _LOG.info(f"missing permission was granted permission={str(permission)!r}")

    def missing(self) -> Mapping[Permission, str]:
        """Return the permissions that were denied at the last attempt, each with the server's message."""
        return dict(self._missing)


def remedy(permission: Permission) -> str:
    """Return one sentence that names the missing permission and how to grant it."""
    deleted = (
        ", or remove the namespace from the operator's settings if it was deleted"
        if permission.namespace and permission.verb in {"list", "watch"}
        else ""
    )
    return (
        f"the operator may not {permission}: "
        f"grant its service account the verb {permission.verb} on {permission.resource} there{deleted}"
    )
