"""The writes that the operator makes, each idempotent. Decides nothing; must not retry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.kube.errors import ApiError
from trainyard.kube.resource import Resource
from trainyard.kube.session import METADATA, Session


@dataclass(frozen=True, slots=True)
class Writer:
    """Verbs over a session. All raise `ApiError`. A write returns the object's metadata, with its resourceVersion.

    The rest of the answer is not requested: the caller wrote it, and unread answers would be half of the traffic.
    """

    session: Session

    async def get(self, resource: Resource, namespace: str | None, name: str) -> dict[str, Any] | None:
        """Return the object as the server has it now, or None. A namespace of None: it has none. Only for rare reads: reconciles read the store."""
        try:
            return await self.session.request("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def create(self, resource: Resource, namespace: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object. A repeated create fails with `already_exists`, since names are derived and not
        generated.
        """
        return await self.session.request("POST", resource.path(namespace), body=manifest, accept=METADATA)

    async def try_create(self, resource: Resource, namespace: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object as the server would store it after defaulting and pruning. Nothing is stored (dry run)."""
        path = resource.path(namespace)
        return await self.session.request("POST", path, params={"dryRun": "All"}, body=manifest)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> dict[str, Any] | None:
        """Delete the object with this UID. Return None where it is already gone or another object has its name.

        For a pod with a grace period the answer is its metadata with a deletionTimestamp. The node removes it later.
        """
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            return await self.session.request("DELETE", resource.path(namespace, name), body=options, accept=METADATA)
        except ApiError as error:
            # The API has two messages and no reason for a UID that does not match. Both messages contain this word.
            if error.not_found or (error.conflict and "precondition" in error.message):
                return None
            raise

    async def delete_all(self, resource: Resource, namespace: str, selector: str) -> None:
        """Delete all objects in the namespace that have these labels. None of them is no error."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        path, params = resource.path(namespace), {"labelSelector": selector}
        await self.session.request("DELETE", path, params=params, body=options)

    async def replace_status(
        self, resource: Resource, namespace: str, name: str, obj: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write the status of `obj`. Fails with `conflict` where the object's resourceVersion has changed since it was
        read.

        The version fences an operator that decided on old state, so an object without one is a bug of the caller.
        """
        if not obj.get("metadata", {}).get("resourceVersion"):
            raise ValueError(
                f"status of {resource.qualified} {namespace}/{name} has no resourceVersion: "
                "pass the object as it was read"
            )
        path = resource.path(namespace, name, "status")
        return await self.session.request("PUT", path, body=obj, accept=METADATA)

    async def merge(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], *, subresource: str | None = None
    ) -> dict[str, Any]:
        """Merge fields into an object (RFC 7386: null removes a field)."""
        return await self.session.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            body=patch,
            content_type="application/merge-patch+json",
            accept=METADATA,
        )
