"""Run a coordinator with job caches and a reconcile loop, but without an API server. The process under load."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson
import uvloop
from prometheus_client import CollectorRegistry

from dev.benchmarks.agents.waiting import address
from dev.benchmarks.scale.usage import of
from trainyard.api.agent_protocol import AgentState, SyncRequest
from trainyard.api.internal_status import Group
from trainyard.controller.bootstrap.limits import collect_garbage_rarely, raise_open_file_limit
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.reconcile.caches import Caches
from trainyard.controller.reconcile.coordination import create_coordinator
from trainyard.controller.reconcile.resources import job_record, pod_record
from trainyard.coordinator.certificate import CertificateFolder
from trainyard.coordinator.tokens import PodIdentity
from trainyard.domain.plan import plan
from trainyard.domain.state.worker_views import AgentView
from trainyard.engine.loop import ReconcileLoop
from trainyard.engine.queue import WorkQueue
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import Worker
from trainyard.kube.clock import ServerClock

if TYPE_CHECKING:
    from trainyard.kube.session import Session

NAMESPACE = "lab"
STARTED = "2026-01-01T00:00:00Z"
RELAYED_AT_ONCE = 100
"""How many states of agents a standby would send to the leader in one message."""


def fill(caches: Caches, jobs: int, workers: int) -> None:
    """Fill the caches with running jobs of one-rank workers. The UID of a pod is `JOB-INDEX`."""
    cache = caches.of(NAMESPACE)
    container = {"name": "main", "image": "trainer:1", "command": ["python", "train.py"]}
    spec = {"replicas": workers, "template": {"spec": {"containers": [container]}}}
    status = {
        "phase": "Running",
        **dict.fromkeys(("startTime", "runningTime"), STARTED),
        "internal": {"launchedAttempt": 1, **dict.fromkeys(("activeSince", "attemptStartTime"), STARTED)},
    }
    for number in range(jobs):
        metadata = {"uid": str(number), "name": f"job{number}", "namespace": NAMESPACE, "resourceVersion": "1"}
        record = job_record({"metadata": {**metadata, "generation": 1}, "spec": spec, "status": status})
        cache.jobs.apply(record)
        if (view := record.view) is None:
            raise ValueError(record.problem)
        for index in range(workers):
            pod = worker_pod(Worker(view, index, 1, workers))
            pod["metadata"] |= {"uid": f"{number}-{index}", "resourceVersion": "1"}
            pod["spec"]["nodeName"] = "node1"
            state = [{"name": "main", "state": {"running": {}}}]
            ready = [{"type": "Ready", "status": "True"}]
            pod["status"] = {
                "phase": "Running",
                "podIP": address(number * workers + index),
                "conditions": ready,
                "containerStatuses": state,
            }
            cache.pods.apply(pod_record(pod))


class _Cluster:
    """Stand-in for the API server: it returns the signing keys of tokens and the time."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._documents = documents
        self.clock = ServerClock()

    async def request(self, _method: str, path: str, **_: object) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self._documents[path])


class Service:
    """A coordinator, and a reconciler of the jobs that it queues."""

    def __init__(self, folder: Path, jobs: int, workers: int) -> None:
        """`folder` contains the certificate and `keys.json`, the signing keys of the cluster."""
        self.registry, self.caches = CollectorRegistry(), Caches.empty()
        fill(self.caches, jobs, workers)
        self.queue: WorkQueue[str] = WorkQueue()
        settings = Settings(coordinator_url="https://localhost:1")
        session = cast("Session", _Cluster(orjson.loads((folder / "keys.json").read_bytes())))
        made = create_coordinator(
            settings, session, self.caches, self.queue, self.registry, lambda: True, lambda _: True
        )
        if made is None:
            raise ValueError("the coordinator is disabled")
        CertificateFolder(folder, made.certificate).load()
        self.coordinator = made
        self.reconciles = 0
        self.late: list[float] = []

    async def reconcile(self, uid: str) -> float | None:
        """Reconcile one job and store its new status in the cache."""
        cache = self.caches.of(NAMESPACE)
        record = cache.jobs.get(uid)
        made = self.coordinator
        reports = made.progress_store.of(uid)
        snapshot = cache.snapshot(record, reports=reports, agent_registry=made.agent_registry) if record else None
        if record and snapshot:
            status = plan(snapshot, datetime.now(UTC)).status
            if status != snapshot.job.status:
                cache.jobs.apply(record.with_status(status, record.resource_version + 1))
                made.agent_registry.wake(uid)
        self.reconciles += 1
        return None

    def new_attempts(self, first: int, count: int) -> dict[str, float]:
        """Store a new in-place attempt for each of these jobs, and return the time."""
        jobs, began = self.caches.of(NAMESPACE).jobs, time.monotonic()
        for number in range(first, first + count):
            record = jobs.get(str(number))
            if record is None or (view := record.view) is None:
                raise ValueError(f"there is no job {number}")
            attempt = view.status.attempt + 1
            status = view.status.evolve(attempt=attempt, launched_attempt=attempt, group=Group(created_in_attempt=1))
            jobs.apply(record.with_status(status, record.resource_version + 1))
            self.coordinator.agent_registry.wake(record.uid)
        return {"at": began}

    async def relay(self, jobs: int, workers: int) -> dict[str, float]:
        """Start attempt 2 of all jobs, and receive that all agents are ready as standbys would send it, in batches.

        To be called before agents connect. Return the CPU seconds until every job may start: the leader's part of a restart if standbys held the long
        polls. Parsing of the batches is included, their transport is not.
        """
        made, jobs_cache = self.coordinator, self.caches.of(NAMESPACE).jobs
        began = time.process_time()
        self.new_attempts(0, jobs)
        uids = [str(number) for number in range(jobs)]
        states = [
            {"pod": f"{uid}-{index}", "attempt": record.attempt, "state": AgentState.WAITING}
            for uid in uids
            if (record := jobs_cache.get(uid))
            for index in range(workers)
        ]
        for first in range(0, len(states), RELAYED_AT_ONCE):
            for each in orjson.loads(orjson.dumps(states[first : first + RELAYED_AT_ONCE])):
                call = SyncRequest.model_validate({"attempt": each["attempt"], "state": each["state"]})
                pod, job = made.progress_store.resolve(PodIdentity(NAMESPACE, "", each["pod"]))
                with made.agent_registry.long_poll(job.uid, pod.uid, AgentView(call.attempt, call.state)):
                    pass
            await asyncio.sleep(0)
        while any(job.view and job.view.status.awaiting_rendezvous for job in map(jobs_cache.get, uids) if job):  # noqa: ASYNC110 - of many, the last
            await asyncio.sleep(0.1)
        return {"cpu_s": time.process_time() - began}

    async def watch(self) -> None:
        """Record the delay of the event loop."""
        while True:
            due = time.perf_counter() + 0.01
            await asyncio.sleep(0.01)
            self.late.append(time.perf_counter() - due)

    def costs(self) -> dict[str, float]:
        """Return CPU time and memory so far, and the event loop delay since the last call."""
        used, late = of([os.getpid()]), sorted(self.late)
        self.late.clear()
        p99 = late[int(len(late) * 0.99)] * 1000 if late else 0.0
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        costs = {"cpu_s": used.cpu_s, "peak_mib": used.peak_mib, "rss_mib": rss}
        return {**costs, "late_ms": p99, "reconciles": self.reconciles}


async def serve(service: Service) -> None:
    """Serve until standard input is closed. Write lines of JSON: the port, then the costs for each line read.

    The line `attempt FIRST COUNT` starts a new attempt of these jobs; `relay JOBS WORKERS` starts one of all jobs, whose
    agents report in batches.
    """
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with service.coordinator.serve("127.0.0.1", 0) as port:
        loop = ReconcileLoop(service.queue, service.reconcile, workers=8)
        tasks = [asyncio.create_task(part) for part in (service.watch(), loop.run())]
        _say({"port": port})
        while line := (await reader.readline()).decode():
            match line.split():
                case ["attempt", first, count]:
                    _say(service.new_attempts(int(first), int(count)))
                case ["relay", jobs, workers]:
                    _say(await service.relay(int(jobs), int(workers)))
                case _:
                    _say(service.costs())
        for task in tasks:
            task.cancel()


def _say(line: Mapping[str, object]) -> None:
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """`FOLDER JOBS WORKERS`."""
    folder, jobs, workers = arguments
    raise_open_file_limit()
    collect_garbage_rarely()

    async def run() -> None:
        await serve(Service(Path(folder), int(jobs), int(workers)))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


if __name__ == "__main__":
    main(sys.argv[1:])
