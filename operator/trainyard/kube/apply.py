"""The writes the operator makes, each harmless when made twice. Decides nothing; must not retry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.kube.errors import ApiError
from trainyard.kube.resource import Resource
from trainyard.kube.session import METADATA, Session


@dataclass(frozen=True, slots=True)
class Writer:
    """Verbs over a session. All raise `ApiError`; the answer to a write is the object's metadata, with its resourceVersion.

    No more than that: who writes knows the rest, and half of an operator's traffic would be answers that nobody reads.
    """

    session: Session

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any] | None:
        """The object as the server has it now, or None. For cold paths: passes read the store."""
        try:
            return await self.session.request("GET", resource.path(namespace, name))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def create(self, resource: Resource, namespace: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object. `already_exists` is the answer to a repeat, since names are derived and not generated."""
        return await self.session.request("POST", resource.path(namespace), body=manifest, accept=METADATA)

    async def try_create(self, resource: Resource, namespace: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """What would become of an object, with all that the server adds and drops. Nothing is stored."""
        path = resource.path(namespace)
        return await self.session.request("POST", path, params={"dryRun": "All"}, body=manifest)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None
    ) -> dict[str, Any] | None:
        """Delete the object with this UID. None: it is gone already, or another one has its name.

        A pod with a grace period is answered with its metadata, now with a deletionTimestamp; it goes when its node says so.
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
            # The API has two sentences for a UID that does not match and no reason of its own; both have this word.
            if error.not_found or (error.conflict and "precondition" in error.message):
                return None
            raise

    async def replace_status(
        self, resource: Resource, namespace: str, name: str, obj: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write the status of `obj`, if it still has the resourceVersion it was read at; else the error is a `conflict`.

        The version is what fences an operator that decided on an old state, so one without it is a bug of the caller.
        """
        if not obj.get("metadata", {}).get("resourceVersion"):
            raise ValueError(
                f"status of {resource.qualified} {namespace}/{name} written without the resourceVersion it was decided on"
            )
        path = resource.path(namespace, name, "status")
        return await self.session.request("PUT", path, body=obj, accept=METADATA)

    async def merge(
        self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any], *, subresource: str | None = None
    ) -> dict[str, Any]:
        """Merge fields into an object (RFC 7386: null removes)."""
        return await self.session.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            body=patch,
            content_type="application/merge-patch+json",
            accept=METADATA,
        )
