"""Serve /metrics for Prometheus, and /healthz and /readyz for the kubelet, each on a port of its own."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry

from trainyard.controller.bootstrap.bounded_site import serve_bounded
from trainyard.controller.bootstrap.health import Health
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.metrics.exposition import Exposition


class ListenError(Exception):
    """The process cannot listen on the address; the message says why."""


class Ports(NamedTuple):
    """The ports on which the process listens."""

    metrics: int
    health: int


@asynccontextmanager
async def serve(settings: Settings, registry: CollectorRegistry, health: Health) -> AsyncIterator[Ports]:
    """Serve inside the context. Yields the ports. Raises ListenError."""
    host = settings.http_host
    sites = (
        (_metrics(Exposition(registry)), settings.http_port, "TRAINYARD_HTTP_PORT"),
        (_probes(health), settings.health_port, "TRAINYARD_HEALTH_PORT"),
    )
    async with AsyncExitStack() as stack:
        ports = []
        for application, port, setting in sites:
            try:
                ports.append(await stack.enter_async_context(serve_bounded(application, host, port)))
            except (OSError, UnicodeError) as error:
                raise ListenError(
                    f"cannot listen on {host}, port {port}: {error}; set TRAINYARD_HTTP_HOST and {setting}"
                ) from error
        yield Ports(*ports)


def _metrics(exposition: Exposition) -> web.Application:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=await exposition.read(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application(client_max_size=1)
    application.add_routes([web.get("/metrics", metrics)])
    return application


def _probes(health: Health) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        return _respond(health.problems(), "")

    async def readyz(_: web.Request) -> web.Response:
        return _respond([*health.obstacles(), *health.problems()], health.leadership())

    application = web.Application(client_max_size=1)
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    return application


def _respond(problems: Sequence[str], leadership: str) -> web.Response:
    lines = [*(problems or ["ok"]), *([leadership] if leadership else [])]
    return web.Response(text="\n".join(lines) + "\n", status=503 if problems else 200)
