import http.client
import socket
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from trainyard_torch.monitoring import endpoint
from trainyard_torch.monitoring.metrics import METRICS
from trainyard_torch.monitoring.rank_metrics import RankMetrics


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    return number


def scraped(port: int, host: str = "127.0.0.1") -> dict[str, float]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_receives_what_is_known_now(port: int) -> None:
    readings = [RankMetrics(rank=2, step=7, time=5.0, steps=3, phases={"data": 0.5}, loss=1.5)]
    end = endpoint.serve(port, lambda: readings)
    assert end
    scrape = scraped(port)
    assert scrape["trainyard_training_phase_seconds_total['2', 'data']"] == 0.5
    assert (scrape["trainyard_training_steps_total['2']"], scrape["trainyard_training_loss[]"]) == (3, 1.5)
    assert not [name for name in scrape if name.endswith("_created")]
    readings.clear()
    assert scraped(port) == {}, "no series of a rank that is gone"
    end()
    with pytest.raises(ConnectionRefusedError):
        scraped(port)
    again = endpoint.serve(port, lambda: readings)
    assert again, "the next attempt in the same container has the port"
    again()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="a machine without IPv6")
def test_by_both_kinds_of_addresses(port: int) -> None:
    end = endpoint.serve(port, lambda: [RankMetrics(rank=0, step=1, time=0.0, steps=1)])
    assert end
    assert scraped(port, "::1") == scraped(port)
    end()


def test_without_ipv6_by_the_other_kind(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import prometheus_client  # noqa: PLC0415 - as the code does

    start = prometheus_client.start_http_server

    def without(port: int, address: str, registry: object) -> object:
        if ":" in address:
            raise OSError(99, "Cannot assign requested address")
        return start(port, address, registry)  # type: ignore[arg-type]  # a registry

    monkeypatch.setattr(prometheus_client, "start_http_server", without)
    end = endpoint.serve(port, lambda: [RankMetrics(rank=0, step=1, time=0.0, steps=1)])
    assert end
    assert scraped(port)
    end()


def test_older_library_offers_no_way_to_stop(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prometheus_client.start_http_server", lambda *_: None)
    end = endpoint.serve(port, list)
    assert end
    end()


def test_a_port_that_is_taken_ends_nothing(port: int, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("0.0.0.0", port)):  # noqa: S104 - as another program would
        assert endpoint.serve(port, list) is None
    (message,) = caplog.messages
    assert message == (
        f"no metrics on port {port}: the port is taken: set TRAINYARD_METRICS_PORT to another one; training continues"
    )


def test_an_image_without_the_library(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert endpoint.serve(9400, list) is None
    assert "prometheus_client is not installed" in caplog.text


@pytest.mark.parametrize(
    ("given", "message", "meant"),
    [(None, None, None), (None, "", None), (None, " 9400 ", 9400), (9500, "9400", 9500)],
)
def test_which_port_is_meant(given: int | None, message: str | None, meant: int | None) -> None:
    assert endpoint.configured_port(given, {} if message is None else {endpoint.PORT: message}) == meant


@pytest.mark.parametrize(("given", "message"), [(0, ""), (70000, ""), (None, "http"), (None, "0"), (None, "99999")])
def test_what_is_no_port(given: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=r"must be (a port )?from 1 to 65535"):
        endpoint.configured_port(given, {endpoint.PORT: message})


def test_all_metrics_can_be_served() -> None:
    known = RankMetrics(
        0, 1, 1.0, 1, 1, 1, {"data": 1.0}, dict.fromkeys(("allocated", "reserved", "peak", "host"), 1.0)
    )
    families = [*endpoint._Collector(lambda: [known]).collect()]
    assert len(families) == len(METRICS)
