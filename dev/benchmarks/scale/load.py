"""A process that sends many objects to the API server as fast as 64 requests in flight go. It reads no watch.

Its arguments: the API server and the folder of its keys, the path to post to, and a file with an object on each line. It says when it
is ready, waits for a line, sends, and says when it began. As `raw` it is also the limit that operators are measured against.
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


async def _send(client: aiohttp.ClientSession, path: str, bodies: list[bytes]) -> list[str]:
    refused: list[str] = []
    left = iter(bodies)

    async def lane() -> None:
        for body in left:
            async with client.post(path, data=body, headers={"Content-Type": "application/json"}) as response:
                answer = await response.read()
                if response.status >= 400:
                    refused.append(answer.decode(errors="replace")[:300])

    await asyncio.gather(*(lane() for _ in range(IN_FLIGHT)))
    return refused


async def _run(api: Api, path: str, bodies: list[bytes]) -> None:
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT, ssl=api.tls())
    async with aiohttp.ClientSession(api.server, connector=connector) as client:
        # Connections that stand already: shaking hands is not what is measured.
        await asyncio.gather(*(_warm(client) for _ in range(IN_FLIGHT)))
        _say(ready=len(bodies))
        await asyncio.to_thread(sys.stdin.readline)
        began = time.monotonic()
        refused = await _send(client, path, bodies)
        _say(began=began, ended=time.monotonic(), refused=refused[:3])
        await asyncio.to_thread(sys.stdin.readline)  # its usage is read before it ends


async def _warm(client: aiohttp.ClientSession) -> None:
    async with client.get("/version") as response:
        orjson.loads(await response.read())


def _say(**words: object) -> None:
    print(json.dumps(words), flush=True)  # noqa: T201 - the line that the parent process waits for


if __name__ == "__main__":
    uvloop.run(_run(Api(sys.argv[1], Path(sys.argv[2])), sys.argv[3], Path(sys.argv[4]).read_bytes().splitlines()))
