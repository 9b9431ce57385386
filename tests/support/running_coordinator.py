"""A coordinator that serves over TLS, and a client for it."""

import io
import itertools
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from dev.benchmarks.agents.credentials import Issuer, certificate
from tests.support.jobs import NOW, job
from trainyard.api.agent_protocol import REPORT_PATH
from trainyard.coordinator.agent_registry import AgentRegistry
from trainyard.coordinator.certificate import CertificateFolder
from trainyard.coordinator.progress_store import ProgressStore
from trainyard.coordinator.request_limits import WorkerIndex
from trainyard.coordinator.server import CoordinatorServer
from trainyard.coordinator.tokens import PodIdentity, TokenVerifier
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import PodView


class RunningCoordinator:
    """A coordinator that serves one job of three workers over TLS, and a client for it."""

    def __init__(self, folder: Path) -> None:
        self.issuer = Issuer()
        self.leading = True
        self.registry = CollectorRegistry()
        self.client = ssl.create_default_context(cadata=certificate(folder))
        # Python 3.13 requires extensions that the chart's certificates lack.
        self.client.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self.scene = job(3).running()
        self.addresses: tuple[str, ...] = ()
        self.changes: list[str] = []
        # Each look at the workers sees them as they are.
        ticks = itertools.count(0.0, 10.0)

        async def fetch(path: str) -> dict[str, Any]:
            return self.issuer.documents[path]

        def find(sender: PodIdentity) -> tuple[PodView, JobView] | None:
            pod = next((pod for pod in self.pods if pod.uid == sender.uid), None)
            return (pod, self.scene.job) if pod else None

        self.progress_store = ProgressStore(find, lambda uid, _: self.changes.append(uid), lambda: NOW)
        report_counter = Counter("trainyard_agent_reports", "…", ["result"], registry=self.registry)
        sync_counter = Counter("trainyard_agent_calls", "…", ["result"], registry=self.registry)
        self.agent_registry = AgentRegistry(lambda: NOW, lambda uid, _: self.changes.append(uid), lambda: 0.0)
        self.certificate_folder = CertificateFolder(folder)
        self.certificate_folder.load()
        self.server = CoordinatorServer(
            TokenVerifier(fetch),
            self.progress_store,
            self.agent_registry,
            self.certificate_folder.certificate,
            lambda: self.leading,
            report_counter,
            sync_counter,
            WorkerIndex(lambda: self.pods, lambda: next(ticks)),
            lambda _: self.pods,
        )
        self.port = 0

    def place(self, *addresses: str) -> None:
        """Give the job's pods these addresses; further pods get the last one."""
        self.addresses = addresses

    @property
    def pods(self) -> list[PodView]:
        """The pods of the scene, at their addresses."""
        places = self.addresses or ("",)
        return [replace(pod, ip=places[min(n, len(places) - 1)]) for n, pod in enumerate(self.scene.pods)]

    def token(self, uid: str = "pod-1-1", **claims: Any) -> str:
        return self.issuer.token(uid, **claims)

    async def post(
        self, body: object, token: str | None = None, path: str = REPORT_PATH, **options: Any
    ) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self.token() if token is None else token}"}
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        url = f"https://localhost:{self.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, **{"data": data, "headers": headers, "ssl": self.client, **options}) as answer,
        ):
            return answer.status, await answer.json()

    def counted(self, result: str, what: str = "reports") -> float:
        return self.registry.get_sample_value(f"trainyard_agent_{what}_total", {"result": result}) or 0


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[RunningCoordinator]:
    made = RunningCoordinator(tmp_path)
    async with made.server.serve("127.0.0.1", 0) as port:
        made.port = port
        yield made
