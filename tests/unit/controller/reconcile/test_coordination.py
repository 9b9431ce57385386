"""From an agent's report to `kubectl get`, through the whole operator."""

import asyncio
import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dev.benchmarks.agents.credentials import Issuer, certificate
from tests.support.fake_api import FakeApi
from tests.support.fake_cluster import Json
from tests.support.waiting import until
from tests.unit.controller.conftest import operator
from tests.unit.controller.kubelet import LAB, Lab
from trainyard.certificates.contents import CertificateError
from trainyard.controller.bootstrap import main, operator as operator_module
from trainyard.controller.bootstrap.http_server import ListenError
from trainyard.controller.bootstrap.operator import Operator
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.reconcile import coordination
from trainyard.coordinator import progress_store
from trainyard.coordinator.tokens import PodIdentity
from trainyard.kube.resource import EVENTS, NODES, PODS
from trainyard.kube.secret import SECRETS

COMMAND = {"spec": {"containers": [{"name": "main", "image": "trainer:1", "command": ["trainyard-agent", "--", "t"]}]}}


class Site:
    """A lab whose cluster signs tokens, and the agents of its pods."""

    def __init__(self, api: FakeApi, folder: Path, port: int) -> None:
        self.lab, self.issuer = Lab(api), Issuer()
        api.served |= self.issuer.documents
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.authority = certificate(folder)
        self.client.load_verify_locations(cadata=self.authority)
        self.port = port
        self.settings: dict[str, Any] = {
            "coordinator_url": "https://localhost:8443",
            "coordinator_host": "127.0.0.1",
            "coordinator_port": port,
            "coordinator_tls": folder,
        }

    def pod(self, name: str) -> Json:
        return self.lab.cluster.get(PODS, LAB, name)

    async def report(self, pod: str, attempt: int, **rank: Any) -> int:
        token = self.issuer.token(self.pod(pod)["metadata"]["uid"], LAB, pod)
        index = self.pod(pod)["metadata"]["labels"]["trainyard.dev/index"]
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"https://localhost:{self.port}/v1/report",
                json={"attempt": attempt, "ranks": {index: rank}},
                headers={"Authorization": f"Bearer {token}"},
                ssl=self.client,
            ) as answer,
        ):
            return answer.status

    async def call(self, pod: str, body: Json) -> tuple[int, Json]:
        """Send a long-poll request, as the pod's agent does."""
        token = self.issuer.token(self.pod(pod)["metadata"]["uid"], LAB, pod)
        url, headers = f"https://localhost:{self.port}/v1/sync", {"Authorization": f"Bearer {token}"}
        async with (
            asyncio.timeout(20),
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=headers, ssl=self.client) as answer,
        ):
            return answer.status, await answer.json()

    async def running(self) -> None:
        names = ["job-worker-0-1", "job-worker-1-1"]
        self.lab.submit(framework="torch", template=COMMAND)
        await self.lab.until_pods(*names)
        self.lab.runs(*names)
        await self.lab.until_phase("Running")


@pytest.fixture
def site(api: FakeApi, tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(progress_store, "MIN_STATUS_INTERVAL_SECONDS", 0.01)
    return Site(api, tmp_path / "tls", unused_tcp_port)


async def test_agent_reports_appear_in_the_status(api: FakeApi, site: Site) -> None:
    async with operator(api, **site.settings):
        await site.running()
        assert await site.report("job-worker-0-1", 1, step=12, total=90, loss=0.5, seconds=0.2) == 200
        await until(lambda: site.lab.status().get("progress", {}).get("step") == 12)
        assert await site.report("job-worker-1-1", 1, step=11, loss=0.25) == 200
        await until(lambda: site.lab.status()["progress"]["step"] == 11)
        progress = site.lab.status()["progress"]
        assert {**progress, "updatedAt": ""} == {
            "step": 11,
            "totalSteps": 90,
            "percent": 12,
            "phase": "train",
            "loss": 0.375,
            "stepSeconds": 0.2,
            "updatedAt": "",
        }


async def test_workers_get_the_coordinator_endpoint(api: FakeApi, site: Site) -> None:
    async with operator(api, **site.settings):
        await site.running()
        (main_,) = site.pod("job-worker-0-1")["spec"]["containers"]
        environment = {each["name"]: each["value"] for each in main_["env"]}
        assert environment["TRAINYARD_COORDINATOR"] == "https://localhost:8443"
        assert environment["TRAINYARD_COORDINATOR_CA"] == site.authority


SECRET: Json = {"metadata": {"name": "cert", "namespace": "default"}, "type": "Opaque"}


async def test_leader_waits_for_its_certificate(api: FakeApi, site: Site) -> None:
    """Otherwise its pods would have no authority for their lifetime."""
    own = {**site.settings, "coordinator_secret": "cert", "coordinator_tls": Path("/none")}
    async with operator(api, ready=False, lease_namespace="default", **own, leader_election=True) as op:
        site.lab.submit(framework="torch", template=COMMAND)
        await until(lambda: op.health.obstacles() == [op.health.certificate()])
        assert "the Secret default/cert: it does not exist" in op.health.certificate()
        assert site.lab.pods() == []
        assert op.elector is not None
        assert not op.elector.leading
        api.cluster.create(SECRETS, "default", SECRET)
        await site.lab.until_pods("job-worker-0-1", "job-worker-1-1")
        assert op.health.obstacles() == []
        (main_,) = site.pod("job-worker-0-1")["spec"]["containers"]
        environment = {each["name"]: each["value"] for each in main_["env"]}
        stored = api.cluster.get(SECRETS, "default", "cert")["data"]
        assert environment["TRAINYARD_COORDINATOR_CA"].encode() == base64.b64decode(stored["ca.crt"])


async def test_unchanged_report_causes_no_write(api: FakeApi, site: Site) -> None:
    async with operator(api, **site.settings) as op:
        await site.running()
        assert await site.report("job-worker-0-1", 1, step=12) == 200
        await until(lambda: site.lab.status().get("progress"))
        await until(lambda: op.loop._queue.idle)
        with api.no_calls(writes_only=True):
            for _ in range(5):
                assert await site.report("job-worker-0-1", 1, step=12) == 200
            await until(lambda: op.loop._queue.idle)


async def test_report_of_an_old_attempt_is_ignored(api: FakeApi, site: Site) -> None:
    api.cluster.graceful = {"pods"}
    async with operator(api, **site.settings):
        await site.running()
        assert await site.report("job-worker-0-1", 1, step=12) == 200
        await until(lambda: site.lab.status().get("progress"))
        site.lab.ends("job-worker-1-1", 1)
        await until(lambda: site.lab.status()["attempt"] == 2)
        assert await site.report("job-worker-0-1", 1, step=13) == 409
        assert await site.report("job-worker-0-1", 2, step=13) == 409
        assert site.lab.status()["progress"]["step"] == 12


async def test_finished_job_keeps_its_last_step(api: FakeApi, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_store, "MIN_STATUS_INTERVAL_SECONDS", 60.0)
    async with operator(api, **site.settings) as op:
        await site.running()
        for pod in ("job-worker-0-1", "job-worker-1-1"):
            assert await site.report(pod, 1, step=90, total=90) == 200
            site.lab.ends(pod, 0)
        await site.lab.until_phase("Complete")
        assert site.lab.status()["progress"]["step"] == 90
        coordinator = op.coordinator
        assert coordinator is not None
        # After it has received its own write.
        await until(lambda: coordinator.progress_store.workers == 0)
        assert await site.report("job-worker-0-1", 1, step=91) == 409


async def test_failed_rank_restarts_in_place(api: FakeApi, site: Site) -> None:
    """The whole protocol: running agents wait, a failed one reports, and all receive the next attempt and start it
    together.
    """
    names, failure = ["job-worker-0-1", "job-worker-1-1"], {"code": 3, "message": "rank 1 ended with exit code 3: boom"}
    async with operator(api, **site.settings) as op:
        await site.running()
        assert op.coordinator is not None
        agent_registry = op.coordinator.agent_registry
        runs = asyncio.create_task(site.call(names[0], {"attempt": 1, "state": "running"}))
        await until(lambda: agent_registry.connected == 1)
        failed = await site.call(names[1], {"attempt": 1, "state": "failed", "failure": failure})
        joins = {"attempt": 2, "run": False, "environment": {}}
        assert (failed, await runs) == ((200, joins), (200, joins))
        assert (site.lab.status()["attempt"], site.lab.status()["phase"]) == (2, "Restarting")
        assert site.lab.status()["lastFailure"]["message"] == failure["message"]

        first = asyncio.create_task(site.call(names[0], {"attempt": 2, "state": "waiting"}))
        await asyncio.sleep(0.2)
        assert not first.done()
        second = await site.call(names[1], {"attempt": 2, "state": "waiting"})
        for index, (status, word) in enumerate((await first, second)):
            assert (status, word["run"], word["environment"]["RANK"]) == (200, True, str(index))
            assert word["environment"].items() >= {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29501"}.items()
        assert site.lab.status()["internal"]["rendezvous"] == {"attempt": 2, "address": "10.0.0.7"}
        assert site.lab.status()["phase"] == "Running"
    assert site.lab.pods() == names


async def test_replacement_worker_waits_for_the_group(api: FakeApi, site: Site) -> None:
    api.cluster.graceful = {"pods"}
    async with operator(api, **site.settings) as op:
        await site.running()
        assert op.coordinator is not None
        agent_registry = op.coordinator.agent_registry
        stays = asyncio.create_task(site.call("job-worker-0-1", {"attempt": 1, "state": "running"}))
        await until(lambda: agent_registry.connected == 1)
        site.lab.ends("job-worker-1-1", 1)
        assert (await stays)[1]["attempt"] == 2
        await until(lambda: "job-worker-1-2" in site.lab.pods())
        (main_,) = site.pod("job-worker-1-2")["spec"]["containers"]
        environment = {each["name"]: each.get("value") for each in main_["env"]}
        assert (environment["TRAINYARD_RENDEZVOUS"], environment["TRAINYARD_ATTEMPT"]) == ("wait", "2")
        assert (await site.call("job-worker-1-1", {"attempt": 1, "state": "running"}))[1]["reason"] == "Replaced"


async def test_only_managed_pods_are_accepted(api: FakeApi, site: Site) -> None:
    async with operator(api, namespaces=(LAB,), **site.settings) as op:
        await site.running()
        uid = site.pod("job-worker-0-1")["metadata"]["uid"]
        assert coordination._find(op.caches, _sender(LAB, uid)) is not None
        assert coordination._find(op.caches, _sender("office", uid)) is None
        assert coordination._find(op.caches, _sender(LAB, "another")) is None


async def test_standby_rejects_agents(api: FakeApi, site: Site) -> None:
    lease: dict[str, Any] = {"lease_namespace": "default", "leader_election": True, "lease_duration_seconds": 30}
    async with operator(api, **lease, **{**site.settings, "coordinator_port": 0}):
        await site.running()
        async with operator(api, **lease, **site.settings):
            assert await site.report("job-worker-0-1", 1, step=12) == 503


async def test_new_leader_rejects_agents_before_listing(api: FakeApi, site: Site) -> None:
    """Its caches may be stale: a reconcile that an agent triggers would decide on them."""
    async with operator(api, **site.settings):
        await site.running()
    site.lab.ends("job-worker-1-1", 1)
    api.fault(path=".*/pods", watch=False)
    listing = api.fault(path=".*/pods", watch=False, status=500, times=1000)
    async with operator(api, **site.settings) as op:
        with api.no_calls(writes_only=True):
            status, response = await site.call("job-worker-0-1", {"attempt": 1, "state": "running"})
            assert (status, response["reason"]) == (503, "NotLeading")
            assert await site.report("job-worker-0-1", 1, step=12) == 503
            await until(lambda: op.loop._queue.idle)
        listing.times = 0
        await until(lambda: site.lab.status()["attempt"] == 2)
        assert await site.report("job-worker-0-1", 1, step=12) != 503


def _sender(namespace: str, uid: str) -> Any:
    return PodIdentity(namespace, "name", uid)


@pytest.mark.parametrize("url", ["http://a:1", "https://a", "https://a:1/", "https://A:1", "a:1"])
def test_unusable_coordinator_url_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.setenv("TRAINYARD_COORDINATOR_URL", url)
    assert main.main() == 2
    assert "TRAINYARD_COORDINATOR_URL: " in capsys.readouterr().err


def test_no_coordinator_without_a_url() -> None:
    assert Settings(coordinator_url="").coordinator_url is None


async def test_missing_certificate_files_stop_the_process(api: FakeApi, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"tls\.crt cannot be read"):
        async with operator(api, coordinator_url="https://localhost:1", coordinator_tls=tmp_path):
            pass


async def test_occupied_port_stops_the_process(api: FakeApi, site: Site, tmp_path: Path) -> None:
    assert isinstance(site, Site)
    async with operator(api, **site.settings) as first:
        assert isinstance(first, Operator)
        with pytest.raises(ListenError, match="TRAINYARD_COORDINATOR_PORT"):
            async with operator(api, **site.settings):
                pass


async def test_evicted_worker_stops_all_after_one_step(api: FakeApi, site: Site) -> None:
    api.cluster.graceful = {"pods"}
    api.cluster.goes_at = lambda seconds: (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
    async with operator(api, **site.settings):
        await site.running()
        names = ("job-worker-0-1", "job-worker-1-1")
        running: Json = {"attempt": 1, "state": "running"}

        async def all_call(**leave: Any) -> list[tuple[int, Json]]:
            bodies = [{**running, "leave": {"leaving": False, "asked": False, "passed": None, "at": None, **leave}}] * 2
            return await asyncio.gather(*map(site.call, names, bodies))

        calls = asyncio.create_task(all_call())
        await asyncio.sleep(0.1)
        api.cluster.delete(PODS, LAB, names[1])
        assert [word["stop"] for _, word in await calls] == [{"step": None}] * 2
        assert [word["stop"] for _, word in await all_call(asked=True, passed=7)] == [{"step": 8}] * 2
        calls = asyncio.create_task(all_call(asked=True, passed=7, at=8))
        await asyncio.sleep(0.1)
        assert not calls.done()
        assert site.lab.status()["attempt"] == 1, "though each of them has hung up for a moment, to tell this"
        calls.cancel()
        failed = {"attempt": 1, "state": "failed", "failure": {"code": 90, "message": "rank 0 ended", "age": 0.1}}
        _, word = await asyncio.gather(
            site.call(names[1], {"attempt": 1, "state": "ended"}), site.call(names[0], failed)
        )
        assert word[1]["attempt"] == 2
        assert site.lab.status()["restarts"]["disruptions"] == 1


async def test_ranks_follow_the_labels_of_nodes(api: FakeApi, site: Site) -> None:
    template = {"spec": {"containers": [{"name": "main", "image": "trainer:1", "command": ["python", "train.py"]}]}}
    pods = [f"job-worker-{index}-1" for index in range(4)]
    nodes = {"n0": "a", "n1": "b", "n2": "a", "n3": "b"}
    for node, rack in nodes.items():
        api.cluster.create(NODES, "", {"metadata": {"name": node, "labels": {"example.com/rack": rack}}})
    read: dict[str, Any] = {"read_nodes": True, "topology_labels": "example.com/rack", "agent_image": "operator:1"}
    async with operator(api, **site.settings, **read):
        site.lab.submit(framework="torch", template=template, replicas=4)
        await site.lab.until_pods(*pods)
        assert {site.pod(name)["metadata"]["annotations"]["trainyard.dev/rank-order"] for name in pods} == {"placement"}
        site.lab.runs(*pods, nodes=nodes)
        await site.lab.until_phase("Running")
        assert site.lab.status()["internal"]["workerOrder"] == {"workers": [0, 2, 1, 3]}
        words = [await site.call(name, {"attempt": 1, "state": "waiting"}) for name in pods]
        assert [word["environment"]["RANK"] for _, word in words] == ["0", "2", "1", "3"]
        assert await site.report("job-worker-1-1", 1, step=3) == 403, "it has rank 2"


async def test_nodes_are_not_read_by_default(api: FakeApi, site: Site) -> None:
    async with operator(api, **site.settings, agent_image="operator:1"):
        site.lab.submit(framework="torch", template=COMMAND, replicas=4, scheduling={"rankOrder": "placement"})
        await site.lab.until_pods(*(f"job-worker-{index}-1" for index in range(4)))
    assert not any("nodes" in call.path for call in api.calls)


async def test_jobs_start_without_the_right_to_nodes(api: FakeApi, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_module, "NODES_WAIT_SECONDS", 0.1)
    api.fault(method="GET", path=".*/nodes", status=403, reason="Forbidden", message="no", times=10_000)
    async with operator(api, **site.settings, read_nodes=True):
        await site.running()


async def test_order_that_is_not_followed_is_reported(api: FakeApi, site: Site) -> None:
    template = {"spec": {"containers": [{**COMMAND["spec"]["containers"][0], "env": [{"name": "RANK", "value": "1"}]}]}}
    async with operator(api, **site.settings, agent_image="operator:1"):
        site.lab.submit(framework="torch", template=template, replicas=4, scheduling={"rankOrder": "placement"})
        await until(
            lambda: (
                "scheduling.rankOrder: placement has no effect: the template sets RANK: remove it from env"
                in [event["note"] for event in api.cluster.objects(EVENTS, LAB)]
            )
        )
