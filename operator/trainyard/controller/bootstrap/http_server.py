"""The HTTP side: /metrics for Prometheus, /healthz and /readyz for the kubelet."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from trainyard.controller.bootstrap.health import Health
from trainyard.coordinator.address import open_listening_socket


class ListenError(Exception):
    """The address cannot be listened on; the message says why."""


@asynccontextmanager
async def serve(host: str, port: int, registry: CollectorRegistry, health: Health) -> AsyncIterator[int]:
    """Serve while inside. Yields the port."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_: web.Request) -> web.Response:
        return _answer(health.troubles(), "")

    async def readyz(_: web.Request) -> web.Response:
        return _answer([*health.waiting(), *health.troubles()], health.standing())

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


def _answer(troubles: Sequence[str], standing: str) -> web.Response:
    lines = [*(troubles or ["ok"]), *([standing] if standing else [])]
    return web.Response(text="\n".join(lines) + "\n", status=503 if troubles else 200)
