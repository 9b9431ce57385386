"""Two pods with valid tokens attack the coordinator, while a job of another namespace recovers."""

import asyncio
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from dev.benchmarks.agents.credentials import Issuer, certificate
from tests.support.fake_api import FakeApi
from tests.support.fake_cluster import Json
from tests.support.hostile_agents import ADDRESS, FIRST_ADDRESS
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from trainyard.controller.bootstrap.operator import Operator
from trainyard.controller.reconcile.resources import TRAINING_JOBS
from trainyard.coordinator.request_limits import POD_BURST, POD_REQUESTS_PER_SECOND
from trainyard.kube.resource import PODS

TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "x:1", "command": ["trainyard-agent", "--", "t"]}]}}
LEASE_SECONDS = 3
NOISE_SECONDS = 0.5
RECOVERIES = 5
"""Of the calm and of the attacked job. The best of them shows the cost, the others the machine."""
PARSED = ("Accepted", "Malformed", "ForeignRank", "StaleAttempt")


class Tenant:
    """A namespace with a job of two workers, and their tokens."""

    def __init__(self, api: FakeApi, issuer: Issuer, namespace: str, *addresses: str, job: str = "job") -> None:
        self.cluster, self.issuer, self.namespace, self.addresses = api.cluster, issuer, namespace, addresses
        self.job, self.pods = job, [f"{job}-worker-{index}-1" for index in range(2)]
        spec = {"framework": "torch", "replicas": 2, "template": TEMPLATE}
        self.cluster.create(TRAINING_JOBS, namespace, {"metadata": {"name": job}, "spec": spec})

    @property
    def status(self) -> Json:
        found: Json = self.cluster.get(TRAINING_JOBS, self.namespace, self.job).get("status") or {}
        return found

    def token(self, pod: str) -> str:
        uid = self.cluster.get(PODS, self.namespace, pod)["metadata"]["uid"]
        return self.issuer.token(uid, self.namespace, pod)

    async def run(self) -> None:
        await until(lambda: set(self.pods) <= self._existing())
        for pod, address in zip(self.pods, self.addresses, strict=True):
            self.cluster.merge(PODS, self.namespace, pod, {"spec": {"nodeName": "node1"}})
            self.cluster.set_status(
                PODS,
                self.namespace,
                pod,
                phase="Running",
                podIP=address,
                conditions=[{"type": "Ready", "status": "True"}],
                containerStatuses=[{"name": "main", "state": {"running": {}}}],
            )
        await until(lambda: self.status.get("phase") == "Running")

    def _existing(self) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.cluster.objects(PODS, self.namespace)}


class Victim:
    """The agents of a tenant, over real connections."""

    def __init__(self, tenant: Tenant, port: int, authority: str) -> None:
        self.tenant, self.port, self.tls = tenant, port, ssl.create_default_context(cadata=authority)
        self.tls.verify_flags &= ~ssl.VERIFY_X509_STRICT

    async def ask(self, pod: int, body: Json) -> Json:
        """Send a long poll as the agent does: again, soon, until it is answered."""
        headers = {"Authorization": f"Bearer {self.tenant.token(self.tenant.pods[pod])}"}
        connector = aiohttp.TCPConnector(local_addr=(self.tenant.addresses[pod], 0), force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                try:
                    url = f"https://localhost:{self.port}/v1/sync"
                    async with session.post(url, json=body, headers=headers, ssl=self.tls) as answer:
                        if answer.status == 200:
                            found: Json = await answer.json()
                            return found
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)

    async def recover(self) -> float:
        """Fail a rank, and return the seconds until both workers run the next attempt."""
        await self.tenant.run()
        failure = {"code": 3, "message": "boom"}
        began = time.perf_counter()
        running = asyncio.create_task(self.ask(0, {"attempt": 1, "state": "running"}))
        await self.ask(1, {"attempt": 1, "state": "failed", "failure": failure})
        await running
        joined = [asyncio.create_task(self.ask(pod, {"attempt": 2, "state": "waiting"})) for pod in (0, 1)]
        assert [answer["run"] for answer in await asyncio.gather(*joined)] == [True, True]
        return time.perf_counter() - began


@asynccontextmanager
async def attack(port: int, tokens: list[str]) -> AsyncIterator[None]:
    """Attack from another process while inside."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", "tests.support.hostile_agents", str(port), *tokens]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"attacking\n"
    try:
        yield
    finally:
        process.stdin.close()
        await process.wait()


def requests(op: Operator, *results: str) -> float:
    """Return the number of requests with one of these results; without any, all of them."""
    names = ("trainyard_agent_reports_total", "trainyard_agent_sync_requests_total")
    samples = [sample for family in op.registry.collect() for sample in family.samples if sample.name in names]
    return sum(each.value for each in samples if not results or each.labels["result"] in results)


async def test_attack_of_two_pods_delays_no_other_tenant(api: FakeApi, tmp_path: Path, unused_tcp_port: int) -> None:
    issuer, authority = Issuer(), certificate(tmp_path)
    api.served |= issuer.documents
    settings: dict[str, Any] = {
        "coordinator_url": "https://localhost:8443",
        "coordinator_host": "127.0.0.1",
        "coordinator_port": unused_tcp_port,
        "coordinator_tls": tmp_path,
        "leader_election": True,
        "lease_namespace": "home",
        "lease_duration_seconds": LEASE_SECONDS,
    }
    async with asyncio.timeout(180), operator(api, **settings) as op:
        mallory = Tenant(api, issuer, "mallory", *(ADDRESS.format(FIRST_ADDRESS + n) for n in range(2)))
        await mallory.run()
        jobs = [Tenant(api, issuer, "lab", "127.0.0.11", "127.0.0.12", job=f"job{n}") for n in range(2 * RECOVERIES)]
        victims = [Victim(job, unused_tcp_port, authority) for job in jobs]
        calm = [await victim.recover() for victim in victims[:RECOVERIES]]
        assert op.elector is not None
        before, renewals, began = requests(op, *PARSED), len(api.calls), time.monotonic()
        async with attack(unused_tcp_port, [mallory.token(pod) for pod in mallory.pods]):
            await until(lambda: requests(op, "TooOften") > 0)
            attacked = [await victim.recover() for victim in victims[RECOVERIES:]]
            await until(lambda: time.monotonic() - began >= LEASE_SECONDS)
        took = time.monotonic() - began
        renewed = [call for call in api.calls[renewals:] if "leases" in call.path and call.method == "PUT"]
        # The bodies of each pod: what its bucket holds, and what flows in. Ten of each recovery are the victim's own.
        parsed = requests(op, *PARSED) - before
        assert parsed <= 2 * (POD_BURST + POD_REQUESTS_PER_SECOND * took) + 10 * RECOVERIES
        assert len(renewed) >= took / op.elector.timing.renew_deadline
        assert op.elector.leading
        assert {job.status["attempt"] for job in jobs} == {2}
        # A recovery takes some hundredths of a second here, less than what a busy machine adds. Without limits it takes seconds.
        assert min(attacked) <= 2 * min(calm) + NOISE_SECONDS, f"{attacked} beside {calm}"
