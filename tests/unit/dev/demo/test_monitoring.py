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


@pytest.mark.parametrize(("value", "requested"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_monitoring_is_optional(value: str | None, requested: bool) -> None:  # noqa: FBT001 - a row of the table
    assert monitoring.requested({} if value is None else {"MONITORING": value}) is requested


def test_other_values_are_rejected() -> None:
    with pytest.raises(DemoError, match="MONITORING is 'on': set it to 1, or leave it unset"):
        monitoring.requested({"MONITORING": "on"})


def test_monitoring_refuses_a_cluster_it_did_not_create() -> None:
    theirs = Cluster(Path("kubectl"), Path("helm"), context="theirs", images={})
    with pytest.raises(DemoError, match=r"metrics\.serviceMonitor"):
        monitoring.start(theirs)


class Answers(BaseHTTPRequestHandler):
    """A Prometheus that has only the metric of the step."""

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
    output = capsys.readouterr().out
    assert "last scraped step: 400" in output
    assert "restarts after failures: no data yet" in output
    assert (
        "trainyard-fleet.json, trainyard-job.json, trainyard-operator.json from helm/trainyard/files/dashboards"
        in output
    )


def test_an_unreachable_prometheus_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "PROMETHEUS_URL", "http://127.0.0.1:1")
    with pytest.raises(DemoError, match="Prometheus does not respond at http://127"):
        monitoring.closing()
