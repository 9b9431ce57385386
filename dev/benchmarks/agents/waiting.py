"""Agents that hold a long poll: each receives a new attempt, reports that it is ready, and starts when all agents are ready."""

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
"""Sends a command to the process of the coordinator, and returns its reply."""
HANDSHAKES = 32
"""Concurrent TLS handshakes."""
ADDRESSES = 200
FIRST_ATTEMPT = 2
"""The attempt of all jobs after `relay`."""
ROUNDS = 20
TIMEOUT_SECONDS = 60.0
HELD_SECONDS = 20.0
"""Time in which the agents only wait."""


def address(agent: int) -> str:
    """Return a loopback address for the agent. One address has too few ports for all agents."""
    return f"127.0.1.{agent % ADDRESSES + 1}"


@dataclass(slots=True)
class Crowd:
    """All agents, in this process."""

    port: int
    tls: ssl.SSLContext
    tokens: list[str]
    notified: dict[int, float] = field(default_factory=dict)
    """Monotonic time at which each agent received the attempt."""
    started: dict[int, float] = field(default_factory=dict)
    """Monotonic time at which each agent received the start."""
    waiting: int = 0

    async def wait(self, agent: int, room: asyncio.Semaphore) -> None:
        """Run one agent until it is cancelled."""
        async with room:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=self.tls, server_hostname="localhost", local_addr=(address(agent), 0)
            )
        try:
            await self._follow(agent, reader, writer)
        finally:
            writer.close()

    async def _follow(self, agent: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempt, state = FIRST_ATTEMPT, "running"
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
                self.notified[agent] = time.monotonic()
                attempt, state = word["attempt"], "waiting"
            elif word["run"] and state == "waiting":
                self.started[agent] = time.monotonic()
                state = "running"

    async def attempts(self, ask: Ask, first: int, jobs: int, workers: int) -> tuple[list[float], list[float]]:
        """Start new attempts of `jobs` jobs at once. Return the seconds until each agent received it, and until it could start."""
        agents = range(first * workers, (first + jobs) * workers)
        self.notified.clear()
        self.started.clear()
        at = (await ask(f"attempt {first} {jobs}"))["at"]
        end = time.monotonic() + TIMEOUT_SECONDS
        while len(self.started) < len(agents) and time.monotonic() < end:  # noqa: ASYNC110 - of many, the last
            await asyncio.sleep(0.02)
        never = [TIMEOUT_SECONDS] * (len(agents) - len(self.started))
        return [self.notified[n] - at for n in agents if n in self.notified], [
            *(when - at for when in self.started.values()),
            *never,
        ]


async def measure(crowd: Crowd, ask: Ask, jobs: int, workers: int) -> list[dict[str, Any]]:
    """Return the rows: states of agents in batches, waiting agents, and new attempts of more and more jobs."""
    room = asyncio.Semaphore(HANDSHAKES)
    relayed = await ask(f"relay {jobs} {workers}")
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
            "what": "all agents report in batches",
            "agents": len(waits),
            "cpu_ms_an_agent": 1000 * relayed["cpu_s"] / len(waits),
        },
        {
            "what": "all hold a long poll",
            "agents": len(waits),
            "kib_an_agent": kib,
            "cpu_share": (held["cpu_s"] - calm["cpu_s"]) / HELD_SECONDS,
            "late_ms": held["late_ms"],
            "peak_mib": held["peak_mib"],
        },
    ]
    for what, count, rounds in (
        ("a new attempt of one job", 1, ROUNDS),
        ("a new attempt of a tenth of the jobs", max(1, jobs // 10), 3),
        ("a new attempt of a third of the jobs", max(1, jobs // 3), 1),
        ("a new attempt of all jobs", jobs, 1),
    ):
        notified, started = list[float](), list[float]()
        cost = await ask("")
        for _ in range(rounds):
            first = random.randrange(jobs - count + 1)  # noqa: S311 - a load, no secret
            received, starts = await crowd.attempts(ask, first, count, workers)
            notified, started = notified + received, started + starts
        after = await ask("")
        rows.append(
            {
                "what": what,
                "agents": count * workers,
                "notified_p99_ms": 1000 * sorted(notified)[int(len(notified) * 0.99)],
                "started_p99_ms": 1000 * sorted(started)[int(len(started) * 0.99)],
                "cpu_ms_an_agent": 1000 * (after["cpu_s"] - cost["cpu_s"]) / (rounds * count * workers),
                "late_ms": after["late_ms"],
                "not_started": sum(seconds >= TIMEOUT_SECONDS for seconds in started),
            }
        )
    for task in waits:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    return rows
