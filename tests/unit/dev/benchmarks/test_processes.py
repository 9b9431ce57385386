"""The two processes of the benchmark, run for real against a small server that plays the API server."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.scale.child import Child
from dev.benchmarks.scale.systems.base import PODS_PATH
from dev.benchmarks.scale.systems.trainyard import JOBS

SECONDS = 30.0


@dataclass
class Server:
    """Takes posts, and tells every watcher of the path."""

    url: str = ""
    version: int = 1
    watchers: dict[str, web.StreamResponse] = field(default_factory=dict)
    watched: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["metadata"]["name"] == "refused":
            return web.Response(status=403, text="not here")
        await self.publish(request.path, "ADDED", body)
        return web.json_response(body, status=201)

    async def publish(self, path: str, kind: str, body: dict[str, Any]) -> None:
        self.version += 1
        metadata = {"uid": body["metadata"]["name"], **body["metadata"], "resourceVersion": str(self.version)}
        line = json.dumps({"type": kind, "object": {**body, "metadata": metadata}}).encode() + b"\n"
        if watcher := self.watchers.get(path):
            await watcher.write(line[:20])  # an event may come in pieces
            await watcher.write(line[20:])

    async def get(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return web.json_response({})
        if "watch" not in request.query:
            return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})
        response = web.StreamResponse()
        await response.prepare(request)
        self.watchers[request.path] = response
        if self.watchers.keys() >= {PODS_PATH, JOBS}:
            self.watched.set()
        await self.stopped.wait()
        return response


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    application = web.Application()
    application.add_routes([web.post("/{path:.*}", server.post), web.get("/{path:.*}", server.get)])
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    server.stopped.set()
    await runner.cleanup()


def posts(folder: Path, *names: str) -> str:
    file = folder / "load.tsv"
    file.write_text("".join(f"{PODS_PATH}\t{json.dumps({'metadata': {'name': name}})}\n" for name in names))
    return str(file)


async def say(child: Child, order: str, word: str) -> dict[str, Any]:
    """Tell the child something and wait for its answer, while the server goes on serving."""
    child.send(order)
    return await asyncio.to_thread(child.expect, word, SECONDS)


async def test_what_is_sent_is_seen_with_the_moment(server: Server, tmp_path: Path) -> None:
    load_words = (server.url, str(tmp_path), posts(tmp_path, *(f"pod-{i}" for i in range(200))))
    with (
        Child("dev.benchmarks.scale.watch", server.url, str(tmp_path), "trainyard", "1", "200") as watch,
        Child("dev.benchmarks.scale.load", *load_words) as load,
    ):
        await asyncio.to_thread(watch.expect, "ready", SECONDS)
        await asyncio.to_thread(load.expect, "ready", SECONDS)
        await server.watched.wait()
        sent = await say(load, "go", "began")
        seen = await asyncio.to_thread(watch.expect, "reached", SECONDS)
        await server.publish(
            JOBS, "ADDED", {"metadata": {"name": "j"}, "status": {"phase": "Running", "readyReplicas": 200}}
        )
        output = await asyncio.to_thread(watch.expect, "reached", SECONDS)
        numbers = await say(watch, "numbers", "numbers")
    assert sent["refused"] == []
    assert (seen["reached"], output["reached"]) == ("created", "status")
    assert sent["began"] < seen["at"] < output["at"] < time.monotonic()
    assert numbers["numbers"] == {"created": 200, "running": 0, "status": 1}


async def test_rejected_requests_are_reported(server: Server, tmp_path: Path) -> None:
    words = (server.url, str(tmp_path), posts(tmp_path, "pod-0", "refused"))
    with Child("dev.benchmarks.scale.load", *words) as load:
        await asyncio.to_thread(load.expect, "ready", SECONDS)
        assert (await say(load, "go", "began"))["refused"] == ["not here"]


def test_dead_process_is_reported(tmp_path: Path) -> None:
    with (
        Child("dev.benchmarks.scale.load", "http://127.0.0.1:1", str(tmp_path), posts(tmp_path)) as load,
        pytest.raises(BenchmarkError, match=r"benchmarks\.scale\.load has exited"),
    ):
        load.expect("ready", SECONDS)
