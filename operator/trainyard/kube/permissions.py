"""Rights that the operator's account turns out not to have, as the API server's answers tell. Keeps the account, decides nothing."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from typing_extensions import override

from trainyard.kube.errors import ApiError
from trainyard.kube.resource import place

_LOG = logging.getLogger(__name__)
_ASKED = frozenset({400, 403, 404, 409, 410, 422})
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """What a Role grants: to do this with that, in one namespace or in all (None)."""

    verb: str
    resource: str
    """As `kubectl create role --resource` takes it: `pods`, `trainingjobs.trainyard.dev/status`."""
    namespace: str | None

    @override
    def __str__(self) -> str:
        return f"{self.verb} {self.resource} in {place(self.namespace)}"


def needed(method: str, path: str, *, watch: bool = False) -> Right:
    """The right that a request asks for, by its path on the server."""
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
    return Right(verb, f"{resource}/{subresource}" if subresource else resource, namespace)


@dataclass(slots=True)
class Rights:
    """The rights that are missing now. One that is refused is named once in the log, and again when it has been granted."""

    on_refused: Callable[[Right], None] = lambda _: None
    """Called for each request that is refused for the want of a right."""
    _missing: dict[Right, str] = field(default_factory=dict, init=False)

    def refused(self, method: str, path: str, error: ApiError, *, watch: bool = False) -> None:
        """A request met this error. One that is about the object shows that the account may ask."""
        if not error.lacks_right:
            if error.status in _ASKED:
                self.granted(method, path, watch=watch)
            return
        right = needed(method, path, watch=watch)
        self.on_refused(right)
        if right not in self._missing:
            _LOG.error(f"{remedy(right)}; tried again until then ({error.message})")
        self._missing[right] = error.message

    def granted(self, method: str, path: str, *, watch: bool = False) -> None:
        """A request was answered."""
        if self._missing and self._missing.pop(right := needed(method, path, watch=watch), None) is not None:
            _LOG.info(f"the operator may {right} now")

    def missing(self) -> Mapping[Right, str]:
        """What was refused when it was last tried, with the server's words."""
        return dict(self._missing)


def remedy(right: Right) -> str:
    """What is wrong and what to do, in one sentence."""
    gone = (
        ", or take the namespace from those it looks after if it was deleted"
        if right.namespace and right.verb in {"list", "watch"}
        else ""
    )
    return (
        f"the operator may not {right}: grant its service account the verb {right.verb} on {right.resource} there{gone}"
    )
