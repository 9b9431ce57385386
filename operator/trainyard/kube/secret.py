"""Read and replace one named Secret, fenced by its resourceVersion. Knows its format; decides nothing."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainyard.kube.errors import ApiError
from trainyard.kube.resource import Resource
from trainyard.kube.session import METADATA, Session

SECRETS = Resource("", "v1", "secrets", "Secret")
REQUEST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Secret:
    """A Secret as the API server holds it."""

    raw: Mapping[str, Any]

    @property
    def data(self) -> dict[str, bytes]:
        """The values by key. Values that are not base64, which no API server stores, are empty."""
        return {str(key): _decoded(value) for key, value in (self.raw.get("data") or {}).items()}


@dataclass(frozen=True, slots=True)
class SecretClient:
    """One Secret on the API server. All methods raise `ApiError`. It cannot create a Secret: RBAC cannot restrict
    `create` to a name.
    """

    session: Session
    """A session of its own: its writes need no leadership."""
    namespace: str
    name: str

    async def read(self) -> Secret | None:
        """Return the Secret as the server has it now, or None."""
        try:
            return Secret(await self.session.request("GET", self._path, timeout=REQUEST_SECONDS))
        except ApiError as error:
            if error.not_found:
                return None
            raise

    async def replace(self, seen: Secret, values: Mapping[str, bytes]) -> None:
        """Set these values. Other keys, labels and the type stay. Fails with a conflict where the Secret has changed
        since `seen`.
        """
        encoded = {key: base64.b64encode(value).decode() for key, value in values.items()}
        body = {**seen.raw, "data": {**(seen.raw.get("data") or {}), **encoded}}
        await self.session.request("PUT", self._path, body=body, timeout=REQUEST_SECONDS, accept=METADATA)

    @property
    def _path(self) -> str:
        return SECRETS.path(self.namespace, self.name)


def _decoded(value: object) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except binascii.Error:
        return b""
