"""MONITORING=1 of the demo, without a cluster."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typing_extensions import override

from dev.demo import monitoring
from dev.demo.commands import Cluster, DemoError


@pytest.mark.parametrize(("value", "wished"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_monitoring_is_optional(value: str | None, wished: bool) -> None:  # noqa: FBT001 - a row of the table
    assert monitoring.wished({} if value is None else {"MONITORING": value}) is wished


def test_neither_yes_nor_no_is_refused() -> None:
    with pytest.raises(DemoError, match="MONITORING must be 1, or not be set, and is 'on'"):
        monitoring.wished({"MONITORING": "on"})


def test_monitoring_refuses_a_cluster_it_did_not_create() -> None:
    theirs = Cluster(Path("kubectl"), Path("helm"), context="theirs", images={})
    with pytest.raises(DemoError, match=r"metrics\.serviceMonitor"):
        monitoring.start(theirs)


class Answers(BaseHTTPRequestHandler):
    """A Prometheus that knows of steps alone."""

    @override
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        found = [{"metric": {}, "value": [1.0, "400"]}] if "trainyard_job_step" in self.path else []
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": {"result": found}}).encode())


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setattr(monitoring, "PROMETHEUS_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setattr(monitoring, "SCRAPE_SECONDS", -1)
        yield
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("prometheus")
def test_summary_shows_last_values_and_links(capsys: pytest.CaptureFixture[str]) -> None:
    monitoring.closing()
    said = capsys.readouterr().out
    assert "the last step that it was asked about: 400" in said
    assert "failures: not told yet" in said
    assert (
        "trainyard-fleet.json, trainyard-job.json, trainyard-operator.json from helm/trainyard/files/dashboards" in said
    )


def test_a_prometheus_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "PROMETHEUS_URL", "http://127.0.0.1:1")
    with pytest.raises(DemoError, match="Prometheus does not answer at http://127"):
        monitoring.closing()
