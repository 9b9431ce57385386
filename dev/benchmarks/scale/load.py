"""A process that sends many objects to the API server as fast as 64 requests in flight go. It reads no watch.

Its arguments: the API server, the folder of its keys, and a file. Each line of the file has a path to post to, a tab and an object.
It reports when it is ready, waits for a line, sends, and reports when it began. It is also the plain client of `raw`.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

import aiohttp
import orjson
import uvloop

from dev.benchmarks.scale.api import Api

IN_FLIGHT: Final = 64


async def _send(client: aiohttp.ClientSession, posts: list[tuple[str, bytes]]) -> list[str]:
    refused: list[str] = []
    left = iter(posts)

    async def lane() -> None:
        for path, body in left:
            async with client.post(path, data=body, headers={"Content-Type": "application/json"}) as response:
                answer = await response.read()
                if response.status >= 400:
                    refused.append(answer.decode(errors="replace")[:300])

    await asyncio.gather(*(lane() for _ in range(IN_FLIGHT)))
    return refused


async def _run(api: Api, posts: list[tuple[str, bytes]]) -> None:
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT, ssl=api.tls())
    async with aiohttp.ClientSession(api.server, connector=connector) as client:
        # Connections that stand already: shaking hands is not what is measured.
        await asyncio.gather(*(_warm(client) for _ in range(IN_FLIGHT)))
        _say(ready=len(posts))
        await asyncio.to_thread(sys.stdin.readline)
        began = time.monotonic()
        refused = await _send(client, posts)
        _say(began=began, ended=time.monotonic(), refused=refused[:3])
        await asyncio.to_thread(sys.stdin.readline)  # its usage is read before it ends


async def _warm(client: aiohttp.ClientSession) -> None:
    async with client.get("/version") as response:
        orjson.loads(await response.read())


def _say(**words: object) -> None:
    print(json.dumps(words), flush=True)  # noqa: T201 - the line that the parent process waits for


def _posts(file: Path) -> list[tuple[str, bytes]]:
    lines = (line.partition(b"\t") for line in file.read_bytes().splitlines())
    return [(path.decode(), body) for path, _, body in lines]


if __name__ == "__main__":
    uvloop.run(_run(Api(sys.argv[1], Path(sys.argv[2])), _posts(Path(sys.argv[3]))))
