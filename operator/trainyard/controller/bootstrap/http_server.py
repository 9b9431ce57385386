"""Serve /metrics for Prometheus, and /healthz and /readyz for the kubelet."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from trainyard.controller.bootstrap.health import Health
from trainyard.coordinator.address import open_listening_socket


class ListenError(Exception):
    """The process cannot listen on the address; the message says why."""


@asynccontextmanager
async def serve(host: str, port: int, registry: CollectorRegistry, health: Health) -> AsyncIterator[int]:
    """Serve inside the context. Yields the port. Raises ListenError."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        return _respond(health.problems(), "")

    async def readyz(_: web.Request) -> web.Response:
        return _respond([*health.obstacles(), *health.problems()], health.leadership())

    application = web.Application()
    application.add_routes(
        [web.get("/metrics", metrics), web.get("/healthz", healthz), web.get("/readyz", readyz)],
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        try:
            await web.SockSite(runner, open_listening_socket(host, port)).start()
        except (OSError, UnicodeError) as error:
            raise ListenError(
                f"cannot listen on {host}, port {port}: {error}; set TRAINYARD_HTTP_HOST and TRAINYARD_HTTP_PORT"
            ) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _respond(problems: Sequence[str], leadership: str) -> web.Response:
    lines = [*(problems or ["ok"]), *([leadership] if leadership else [])]
    return web.Response(text="\n".join(lines) + "\n", status=503 if problems else 200)
