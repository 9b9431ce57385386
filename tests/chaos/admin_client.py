"""Requests to the API server as its administrator, to act as users, scheduler and nodes. Survives a restart of the
server.
"""

import asyncio
import json
import time
from io import BytesIO
from typing import Any, Final, Self

import aiohttp

from tests.chaos.history import LAB
from tests.support.control_plane import ADMIN, ControlPlane

Json = dict[str, Any]

JOBS: Final = f"/apis/trainyard.dev/v1alpha1/namespaces/{LAB}/trainingjobs"
PODS: Final = f"/api/v1/namespaces/{LAB}/pods"
SERVICES: Final = f"/api/v1/namespaces/{LAB}/services"
MERGE: Final = "application/merge-patch+json"
PATIENCE: Final = 60.0


class AnswerError(Exception):
    """The server refused; `status` is the HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class AdminClient:
    """One client. A request is repeated until a server answers, so a repeat may find that it was done."""

    def __init__(self, plane: ControlPlane) -> None:
        self._server = plane.server
        headers = {"Authorization": f"Bearer {plane.token(ADMIN)}"}
        self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=plane.tls()), headers=headers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def call(self, method: str, path: str, body: Json | None = None, content: str = "application/json") -> Json:
        """One request, and the answer. Raises AnswerError."""
        data = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                status, answer = await self._once(method, path, data, content)
            except (aiohttp.ClientError, OSError) as error:
                status, answer = 0, {"message": str(error)}
            if status and status < 400:
                return answer
            # While it starts, its roles are not loaded and even the administrator is a stranger.
            if status not in {0, 401, 403, 429, 500, 503} or time.monotonic() > deadline:
                raise AnswerError(status, f"{method} {path}: {answer.get('message')}")
            await asyncio.sleep(0.1)

    async def gone(self, path: str, body: Json | None = None) -> None:
        """Delete; it is fine if it is gone already."""
        try:
            await self.call("DELETE", path, body)
        except AnswerError as error:
            if error.status not in {404, 409}:
                raise

    async def _once(self, method: str, path: str, data: bytes | None, content: str) -> tuple[int, Json]:
        headers = {"Content-Type": content} if data is not None else {}
        timeout = aiohttp.ClientTimeout(total=20)
        async with self._client.request(
            method, self._server + path, data=data and BytesIO(data), headers=headers, timeout=timeout
        ) as answer:
            return answer.status, await answer.json(content_type=None)
