"""Agents that wait for a word: each holds a connection, hears of a new attempt, says that it is ready, and begins when all are."""

import asyncio
import json
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.api.agent_protocol import SYNC_PATH

Ask = Callable[[str], Awaitable[Mapping[str, float]]]
"""Has the coordinator's process do something, and returns what it says of it."""
HANDSHAKES = 32
"""At a time."""
ADDRESSES = 200
ROUNDS = 20
PATIENCE = 60.0
HELD_SECONDS = 20.0
"""So long they only wait."""


def address(agent: int) -> str:
    """One of this machine's: one address may not have so many connections at a time as all agents together."""
    return f"127.0.1.{agent % ADDRESSES + 1}"


@dataclass(slots=True)
class Crowd:
    """All of them, in this process."""

    port: int
    tls: ssl.SSLContext
    tokens: list[str]
    told: dict[int, float] = field(default_factory=dict)
    """When each agent heard of the attempt, by the machine's monotonic clock."""
    begun: dict[int, float] = field(default_factory=dict)
    """When it was told to begin."""
    waiting: int = 0

    async def wait(self, agent: int, room: asyncio.Semaphore) -> None:
        """One agent, until it is cancelled."""
        async with room:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=self.tls, server_hostname="localhost", local_addr=(address(agent), 0)
            )
        try:
            await self._follow(agent, reader, writer)
        finally:
            writer.close()

    async def _follow(self, agent: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempt, state = 1, "running"
        while True:
            body = json.dumps({"attempt": attempt, "state": state}).encode()
            head = f"POST {SYNC_PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.tokens[agent]}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            self.waiting += 1
            words = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line[15:]) for line in words.split(b"\r\n") if line.lower().startswith(b"content-length:")
            )
            word = json.loads(await reader.readexactly(length))
            self.waiting -= 1
            if word["attempt"] > attempt:
                self.told[agent] = time.monotonic()
                attempt, state = word["attempt"], "waiting"
            elif word["run"] and state == "waiting":
                self.begun[agent] = time.monotonic()
                state = "running"

    async def attempts(self, ask: Ask, first: int, jobs: int, workers: int) -> tuple[list[float], list[float]]:
        """New attempts of so many jobs at the same moment: seconds until each agent heard of it, and until it could begin."""
        agents = range(first * workers, (first + jobs) * workers)
        self.told.clear()
        self.begun.clear()
        at = (await ask(f"attempt {first} {jobs}"))["at"]
        end = time.monotonic() + PATIENCE
        while len(self.begun) < len(agents) and time.monotonic() < end:  # noqa: ASYNC110 - of many, the last
            await asyncio.sleep(0.02)
        never = [PATIENCE] * (len(agents) - len(self.begun))
        return [self.told[n] - at for n in agents if n in self.told], [
            *(when - at for when in self.begun.values()),
            *never,
        ]


async def measure(crowd: Crowd, ask: Ask, jobs: int, workers: int) -> list[dict[str, Any]]:
    """The rows: what it costs to have them wait, then a new attempt of one job, of a tenth of all, of all."""
    room = asyncio.Semaphore(HANDSHAKES)
    before = await ask("")
    waits = [asyncio.create_task(crowd.wait(agent, room)) for agent in range(jobs * workers)]
    while crowd.waiting < len(waits) and not any(task.done() for task in waits):  # noqa: ASYNC110 - of many, the last
        await asyncio.sleep(0.1)
    for task in waits:
        if task.done():
            task.result()
    await ask("")
    calm = await ask("")
    await asyncio.sleep(HELD_SECONDS)
    held = await ask("")
    kib = (held["rss_mib"] - before["rss_mib"]) * 1024 / len(waits)
    rows: list[dict[str, Any]] = [
        {
            "what": "all wait for a word",
            "agents": len(waits),
            "kib_an_agent": kib,
            "cpu_share": (held["cpu_s"] - calm["cpu_s"]) / HELD_SECONDS,
            "late_ms": held["late_ms"],
            "peak_mib": held["peak_mib"],
        }
    ]
    for what, count, rounds in (
        ("a new attempt of one job", 1, ROUNDS),
        ("of a tenth of all", max(1, jobs // 10), 3),
        ("of all", jobs, 1),
    ):
        told, begun = list[float](), list[float]()
        cost = await ask("")
        for _ in range(rounds):
            first = random.randrange(jobs - count + 1)  # noqa: S311 - a load, no secret
            heard, began = await crowd.attempts(ask, first, count, workers)
            told, begun = told + heard, begun + began
        after = await ask("")
        rows.append(
            {
                "what": what,
                "agents": count * workers,
                "told_p99_ms": 1000 * sorted(told)[int(len(told) * 0.99)],
                "begun_p99_ms": 1000 * sorted(begun)[int(len(begun) * 0.99)],
                "cpu_ms_an_agent": 1000 * (after["cpu_s"] - cost["cpu_s"]) / (rounds * count * workers),
                "late_ms": after["late_ms"],
                "not_begun": sum(seconds >= PATIENCE for seconds in begun),
            }
        )
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    return rows
