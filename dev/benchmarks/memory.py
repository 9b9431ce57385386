"""`python -m dev.benchmarks.memory`: what 1,000 TrainingJobs of the largest size cost the operator's memory.

A process lists them with the operator's own informer, three times, from a server of this program. Each list changes the version of
every tenth job. Fails where the peak exceeds the share of the chart's limit that the alert on memory allows. Writes build/bench/memory.json.
"""

import argparse
import asyncio
import json
import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from typing_extensions import override

from dev.localcluster.say import complain, say
from trainyard.api.status import Phase
from trainyard.controller.kopf_adapter.watch_scope import JobInformer
from trainyard.controller.reconcile.resources import MAX_SPEC_BYTES, PAGE_JOBS, JobRecord
from trainyard.kube.session import Endpoint, Session
from trainyard.kube.store import Store

JOBS: Final = 1000
LISTS: Final = 3
MAX_PEAK_MIB: Final = 0.8 * 1024
"""Of the limit of 1 GiB in the chart's values: the threshold of the alert TrainyardMemoryHigh."""
OUTPUT: Final = Path("build/bench/memory.json")


@dataclass(frozen=True, slots=True)
class Figure:
    """The memory of a process that has listed the jobs: before the first list, after it, and at the peak of all lists."""

    phase: Phase
    page: int
    jobs: int
    before_mib: float
    after_mib: float
    peak_mib: float
    problem: str = ""

    @override
    def __str__(self) -> str:
        return (
            f"{self.jobs:,} jobs, {self.phase}, pages of {self.page}: {self.before_mib:.0f} MiB before, "
            f"{self.after_mib:.0f} after the first list, {self.peak_mib:.0f} at the peak of {LISTS} lists"
        )


def job(number: int, version: int, phase: Phase) -> dict[str, Any]:
    """Return a TrainingJob whose spec has almost the largest size."""
    environment = [{"name": f"V{each}", "value": f"{number:08d}" * 128} for each in range(MAX_SPEC_BYTES // 1100)]
    container = {"name": "main", "image": "example", "command": ["python"], "env": environment}
    ended = {
        "type": "Complete",
        "status": "True",
        "reason": "Completed",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    metadata = {"uid": str(number), "name": f"job-{number}", "namespace": "lab", "resourceVersion": str(version)}
    return {
        "metadata": {**metadata, "generation": 1},
        "spec": {"lifecycle": {"suspend": phase is Phase.SUSPENDED}, "template": {"spec": {"containers": [container]}}},
        "status": {"phase": phase, "attempt": 1, "conditions": [ended] if phase is Phase.COMPLETE else []},
    }


class Server:
    """An API server that knows the list of jobs only."""

    def __init__(self, jobs: int, phase: Phase) -> None:
        self.jobs, self.phase, self.lists = jobs, phase, 0

    async def page(self, request: web.Request) -> web.Response:
        """Answer one page. Every tenth job has changed since the last list."""
        start = int(request.query.get("continue", "0"))
        end = min(start + int(request.query["limit"]), self.jobs)
        self.lists += not start
        items = [job(each, 1 + (self.lists if each % 10 == 0 else 0), self.phase) for each in range(start, end)]
        metadata = {"resourceVersion": str(100 + self.lists), "continue": str(end) if end < self.jobs else ""}
        return web.json_response({"metadata": metadata, "items": items})


def memory_mib(name: str) -> float:
    """Return a figure of this process: `VmRSS`, its resident memory, or `VmHWM`, the peak of it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) / 1024


async def list_jobs(url: str, page: int) -> tuple[float, float, int]:
    """List the jobs several times. Return the memory before and after the first list, and how many jobs are readable."""
    session, before, after = Session(Endpoint(server=url)), memory_mib("VmRSS"), 0.0
    jobs: Store[JobRecord, str] = Store(lambda record: record.uid)
    informer = JobInformer(session, None, jobs, lambda _: None, 300, page_size=page)
    try:
        for _ in range(LISTS):
            await informer.relist()
            after = after or memory_mib("VmRSS")
    finally:
        await session.close()
    return before, after, sum(not record.problem for record in jobs.values())


def measure(url: str, page: int, phase: Phase, expected: int) -> Figure:
    """Return the figures of this process, which does nothing else."""
    before, after, readable = asyncio.run(list_jobs(url, page))
    problem = "" if readable == expected else f"{expected - readable} of {expected} jobs cannot be read"
    return Figure(phase, page, expected, before, after, memory_mib("VmHWM"), problem)


async def figure(jobs: int, page: int, phase: Phase) -> Figure:
    """Serve the jobs, and return what they cost a process that lists them."""
    application = web.Application()
    application.router.add_get("/{path:.*}", Server(jobs, phase).page)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    # A fresh interpreter: a forked one would have this program's peak.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        waiting = pool.apply_async(measure, (f"http://{host}:{port}", page, phase, jobs))
        found = await asyncio.to_thread(waiting.get)
    await runner.cleanup()
    return found


def complaints(figures: Sequence[Figure]) -> list[str]:
    """Return what is wrong with the figures."""
    found = [each.problem for each in figures if each.problem]
    return found + [
        f"{each}; {MAX_PEAK_MIB:.0f} are allowed"
        for each in figures
        if each.page == PAGE_JOBS and each.peak_mib > MAX_PEAK_MIB
    ]


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.memory", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--pages", type=int, nargs="+", default=[PAGE_JOBS])
    given = parser.parse_args(arguments)
    figures = []
    for phase in (Phase.PENDING, Phase.SUSPENDED, Phase.COMPLETE):
        for page in given.pages:
            figures.append(asyncio.run(figure(given.jobs, page, phase)))
            say(str(figures[-1]))
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps([asdict(each) for each in figures], indent=1) + "\n")
    for complaint in complaints(figures):
        complain(complaint)
    return bool(complaints(figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
