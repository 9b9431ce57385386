"""`python -m dev.benchmarks.agents`: 10,000 agents report to one coordinator at the requested pace, then 1,000 of them at once.
Then all of them hold a long poll while jobs restart.

Print a table and write build/bench/agents.json. Each report uses its own TLS connection, as the agent does.
"""

import argparse
import asyncio
import json
import random
import socket
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from dev.benchmarks.agents import waiting
from dev.benchmarks.agents.credentials import Issuer, certificate
from trainyard.api.agent_protocol import REPORT_PATH
from trainyard.controller.bootstrap.limits import raise_open_file_limit
from trainyard.coordinator.progress_store import MAX_REPORTS_PER_SECOND

WORKERS = 8
"""Workers per job."""
FOLDER = Path("build/bench")
IDLE_SECONDS = 5.0
"""Time without any report."""


@dataclass(slots=True)
class Load:
    """Agents in this process that report to a coordinator in another process."""

    url: str
    tls: ssl.SSLContext
    tokens: list[str]
    took: list[float] = field(default_factory=list)
    answers: Counter[int] = field(default_factory=Counter)

    async def report(self, client: aiohttp.ClientSession, agent: int, step: int) -> float:
        """Send one report, and return the seconds until the next one."""
        rank = {"step": step, "phase": "train", "total": 10**6, "loss": random.random(), "seconds": 0.5}  # noqa: S311 - a load, no secret
        body = {"attempt": 1, "ranks": {str(agent % WORKERS): rank}}
        began = time.perf_counter()
        try:
            headers = {"Authorization": f"Bearer {self.tokens[agent]}"}
            async with client.post(self.url, json=body, headers=headers, ssl=self.tls) as answer:
                reply: dict[str, float] = await answer.json()
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            reply, status = {}, 0
        self.took.append(time.perf_counter() - began)
        self.answers[status] += 1
        return reply.get("next", 5.0)

    async def live(self, client: aiohttp.ClientSession, agent: int, end: float, first: float) -> None:
        """Report as one agent until `end`, with the jitter of the real agent."""
        await asyncio.sleep(random.uniform(0, first))  # noqa: S311 - a load, no secret
        step = 0
        while time.monotonic() < end:
            step += 10
            pause = await self.report(client, agent, step)
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))  # noqa: S311 - a load, no secret

    def reset(self) -> None:
        """Reset the counters."""
        self.took.clear()
        self.answers.clear()

    def figures(self) -> dict[str, Any]:
        """Return the figures of all reports since the last reset."""
        took, answers = sorted(self.took) or [0.0], self.answers
        return {
            "reports": sum(answers.values()),
            "p50_ms": 1000 * took[len(took) // 2],
            "p99_ms": 1000 * took[int(len(took) * 0.99)],
            "not_taken": sum(count for status, count in answers.items() if status != 200),
        }


async def measure(agents: int, seconds: float, burst: int) -> list[dict[str, Any]]:
    """Return the rows: idle, steady, burst, and long polls."""
    with tempfile.TemporaryDirectory() as name:
        folder, issuer = Path(name), Issuer()
        authority = certificate(folder)
        (folder / "keys.json").write_text(json.dumps(issuer.documents))
        tokens = [issuer.token(f"{n // WORKERS}-{n % WORKERS}") for n in range(agents)]
        command = [sys.executable, "-m", "dev.benchmarks.agents.service", name, str(agents // WORKERS), str(WORKERS)]
        pipe = asyncio.subprocess.PIPE
        service = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        if service.stdin is None or service.stdout is None:
            raise RuntimeError("the coordinator has no pipes")
        reads, writes = service.stdout, service.stdin
        port = json.loads(await reads.readline())["port"]
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.load_verify_locations(cadata=authority)
        load = Load(f"https://localhost:{port}{REPORT_PATH}", tls, tokens)

        async def ask(what: str) -> Mapping[str, float]:
            writes.write(f"{what}\n".encode())
            return dict(json.loads(await reads.readline()))

        async def cost() -> Mapping[str, float]:
            return await ask("")

        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(_client(n)) for n in range(waiting.ADDRESSES)]
            await asyncio.sleep(IDLE_SECONDS)
            idle = await cost()
            warm = agents / MAX_REPORTS_PER_SECOND
            end = time.monotonic() + warm + seconds
            living = [
                asyncio.create_task(load.live(clients[agent % len(clients)], agent, end, warm))
                for agent in range(agents)
            ]
            await asyncio.sleep(warm)
            load.reset()
            before = await cost()
            await asyncio.sleep(seconds)
            after, steady = await cost(), load.figures()
            for task in living:
                task.cancel()
            await asyncio.gather(*living, return_exceptions=True)
            load.reset()
            calm = await cost()
            await asyncio.gather(*(load.report(clients[agent % len(clients)], agent, 10**6) for agent in range(burst)))
            last, crowd = await cost(), load.figures()
        waited = await waiting.measure(waiting.Crowd(port, tls, tokens), ask, agents // WORKERS, WORKERS)
        writes.close()
        await service.wait()
    return [
        {"what": "no reports", "agents": agents, "late_ms": idle["late_ms"], "peak_mib": idle["peak_mib"]},
        {
            "what": "at the requested pace",
            "agents": agents,
            **steady,
            **_spent(before, after, steady["reports"], seconds),
        },
        {"what": "all at once", "agents": burst, **crowd, **_spent(calm, last, crowd["reports"], 0.0)},
        *waited,
    ]


def _client(agent: int) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0, force_close=True, family=socket.AF_INET, local_addr=(waiting.address(agent), 0)
    )
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=30))


def _spent(before: Mapping[str, float], after: Mapping[str, float], reports: int, seconds: float) -> dict[str, float]:
    cpu = after["cpu_s"] - before["cpu_s"]
    share = {"cpu_share": cpu / seconds} if seconds else {}
    ms = 1000 * cpu / max(1, reports)
    return {"cpu_ms_a_report": ms, "late_ms": after["late_ms"], "peak_mib": after["peak_mib"], **share}


def main() -> int:
    """Run the benchmark, and return 1 if a report was rejected or an agent received no start."""
    raise_open_file_limit()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--burst", type=int, default=1000)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(measure(options.agents, options.seconds, options.burst))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "agents.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        figures = "  ".join(f"{name} {value:.1f}" for name, value in row.items() if isinstance(value, float))
        sys.stdout.write(f"{row['what']}: {row['agents']:,} agents, {row.get('reports', 0):,} reports  {figures}\n")
    return int(any(row.get("not_taken") or row.get("not_started") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
