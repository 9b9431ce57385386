"""A process that reads the clock: it watches pods and jobs, keeps a few fields of each, and says when all are there.

A load generator that also parsed the watch would fall behind, be dropped by the server, and lack events. Its arguments: the
API server and the folder of its keys, the system's name, jobs, workers a job. A line `again` on its input makes it wait for all once
more; on `numbers` it says how far everything is.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop

from dev.benchmarks.scale.api import Api
from dev.benchmarks.scale.fleet import NAMESPACE
from dev.benchmarks.scale.systems import SYSTEMS
from dev.benchmarks.scale.tally import Tally

Take = Callable[[str, dict[str, Any], float], list[str]]


async def _run(api: Api, name: str, jobs: int, workers: int) -> None:
    system = SYSTEMS[name]
    tally = Tally(jobs * workers, jobs, lambda job: system.says(job, workers))
    limits = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(ssl=api.tls())
    async with aiohttp.ClientSession(api.server, connector=connector, timeout=limits) as client:
        sources: list[tuple[str, Take]] = [(f"/api/v1/namespaces/{NAMESPACE}/pods", tally.pod)]
        if system.jobs_path is not None:
            sources.append((system.jobs_path, tally.job))
        starts = [await _list(client, path) for path, _ in sources]
        watches = [
            asyncio.create_task(_follow(client, path, version, take))
            for (path, take), version in zip(sources, starts, strict=True)
        ]
        obey = asyncio.create_task(_obey(tally))
        _say(ready=True)
        await asyncio.wait([obey, *watches], return_when=asyncio.FIRST_COMPLETED)
        for task in (obey, *watches):
            if task.done():
                task.result()
            task.cancel()


async def _obey(tally: Tally) -> None:
    while order := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if order == "again":
            tally.again()
        _say(numbers=tally.numbers())


async def _list(client: aiohttp.ClientSession, path: str) -> str:
    async with client.get(path) as response:
        found = orjson.loads(await response.read())
    if found["items"]:
        raise RuntimeError(f"{path} is not empty")
    return str(found["metadata"]["resourceVersion"])


async def _follow(client: aiohttp.ClientSession, path: str, version: str, take: Take) -> None:
    while True:
        async with client.get(path, params={"watch": "1", "resourceVersion": version}) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                now = time.monotonic()
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"the watch of {path} broke: {event['object'].get('message')}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    for milestone in take(event["type"], event["object"], now):
                        _say(reached=milestone, at=now)


def _say(**words: object) -> None:
    print(json.dumps(words), flush=True)  # noqa: T201 - the line that the parent process waits for


if __name__ == "__main__":
    uvloop.run(_run(Api(sys.argv[1], Path(sys.argv[2])), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])))
