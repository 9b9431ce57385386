"""Settings from the environment, and the messages for invalid ones."""

import socket
from typing import TYPE_CHECKING

import aiohttp
import pytest
from pydantic import ValidationError

from tests.support.fake_api import FakeApi
from tests.unit.controller.conftest import operator
from trainyard.controller.bootstrap import main
from trainyard.controller.bootstrap.settings import Settings
from trainyard.scheduling.topology_labels import TOPOLOGY_LABELS

if TYPE_CHECKING:
    from trainyard.controller.bootstrap.http_server import Ports


@pytest.mark.parametrize(
    ("text", "namespaces"),
    [
        ("", ()),
        ("lab", ("lab",)),
        ("lab,office", ("lab", "office")),
        (" lab , office ,", ("lab", "office")),
        ("a,b,a", ("a", "b")),
    ],
)
def test_namespaces_are_separated_by_commas(
    monkeypatch: pytest.MonkeyPatch, text: str, namespaces: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TRAINYARD_NAMESPACES", text)
    assert Settings().namespaces == namespaces


@pytest.mark.parametrize("text", [" , ", ",", "Lab", "lab*", "!lab", "lab office", "-lab", "a" * 64])
def test_invalid_namespaces_are_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """kopf would read some of these as patterns."""
    monkeypatch.setenv("TRAINYARD_NAMESPACES", text)
    with pytest.raises(ValidationError):
        Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TRAINYARD_NAMESPACES", "lab,Office"),
        ("TRAINYARD_LEASE_DURATION_SECONDS", "1"),
        ("TRAINYARD_LEASE_NAME", "No Name"),
        ("TRAINYARD_INSTANCE", ""),
        ("TRAINYARD_INSTANCE", "ü"),
        ("TRAINYARD_POD_UID", "a pod"),
        ("TRAINYARD_POD_UID", "a" * 65),
        ("TRAINYARD_API_BURST", "9" * 401),
        ("TRAINYARD_AGENT_PULL_SECRETS", "regcred,No Name"),
        ("TRAINYARD_GANG_SCHEDULERS", "native,slurm"),
        ("TRAINYARD_COSCHEDULING_NAME", "No Name"),
        ("TRAINYARD_ACCELERATORS", '{"example.com/npu": 0}'),
        ("TRAINYARD_ACCELERATORS", '{"example.com/npu": "many"}'),
        ("TRAINYARD_ACCELERATORS", '{"npu": 1}'),
        ("TRAINYARD_NETWORK_PROFILES", "{"),
        ("TRAINYARD_NETWORK_PROFILES", '{"A": {}}'),
        ("TRAINYARD_NETWORK_PROFILES", '{"auto": {}}'),
        ("TRAINYARD_NETWORK_PROFILES", '{"p5": {"interfaces": "eth0"}}'),
        ("TRAINYARD_NETWORK_PROFILES", '{"p5": {"base": "elastic"}}'),
        ("TRAINYARD_NETWORK_PROFILES", '{"p5": {"env": {"MASTER_ADDR": "x"}}}'),
        ("TRAINYARD_TOPOLOGY_LABELS", "example.com/rack,a label"),
        ("TRAINYARD_WORKER_LABELS", '{"a b": "c"}'),
        ("TRAINYARD_WORKER_LABELS", '{"a": "b c"}'),
        ("TRAINYARD_WORKER_ANNOTATIONS", '{"a b": "c"}'),
        ("TRAINYARD_JOB_PEERS", "[{}]"),
        ("TRAINYARD_JOB_PEERS", '[{"podselector": {}}]'),
        ("TRAINYARD_JOB_PEERS", "{"),
        ("TRAINYARD_JOB_PEERS", '[{"ipBlock": {"cidr": "10.0.0.5/8"}}]'),
        ("TRAINYARD_JOB_PEERS", '[{"ipBlock": {"cidr": "999.0.0.0/8"}}]'),
        ("TRAINYARD_JOB_PEERS", '[{"ipBlock": {"cidr": "::::/8"}}]'),
        ("TRAINYARD_JOB_PEERS", '[{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/9"]}}]'),
        ("TRAINYARD_JOB_PEERS", '[{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.0.0.0/8"]}}]'),
        ("TRAINYARD_JOB_PEERS", '[{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["fd00::/9"]}}]'),
        ("TRAINYARD_JOB_PEERS", '[{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]'),
        ("TRAINYARD_JOB_PEERS", '[{"podSelector": {"matchLabels": {"app": "my prometheus"}}}]'),
        ("TRAINYARD_JOB_PEERS", '[{"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}]'),
        (
            "TRAINYARD_JOB_PEERS",
            '[{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}]',
        ),
    ],
)
def test_invalid_setting_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert main.main() == 2
    assert f"trainyard-operator: {name}: " in capsys.readouterr().err


def test_maps_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_AGENT_PULL_SECRETS", "regcred,mirror")
    monkeypatch.setenv("TRAINYARD_ACCELERATORS", '{"example.com/*": 2, "google.com/tpu": "none"}')
    monkeypatch.setenv("TRAINYARD_WORKER_ANNOTATIONS", '{"note": "a"}')
    monkeypatch.setenv("TRAINYARD_WORKER_LABELS", "")
    made = Settings()
    assert made.agent_pull_secrets == ("regcred", "mirror")
    assert made.accelerators == {"example.com/*": 2, "google.com/tpu": "none"}
    assert (made.worker_annotations, made.worker_labels) == ({"note": "a"}, {})


def test_topology_labels_have_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().topology_labels == TOPOLOGY_LABELS
    monkeypatch.setenv("TRAINYARD_TOPOLOGY_LABELS", "example.com/block, rack,")
    assert Settings().topology_labels == ("example.com/block", "rack")
    monkeypatch.setenv("TRAINYARD_TOPOLOGY_LABELS", "")
    assert Settings().topology_labels == TOPOLOGY_LABELS


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
async def test_default_address_serves_ipv4_and_ipv6(api: FakeApi) -> None:
    ports: list[Ports] = []
    async with operator(api, ports, http_host=Settings().http_host), aiohttp.ClientSession() as client:
        for host in ("127.0.0.1", "[::1]"):
            async with client.get(f"http://{host}:{ports[0].health}/healthz") as answer:
                assert answer.status == 200
