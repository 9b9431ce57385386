"""The coordinator's certificate on a real API server: issued once, renewed, restored, and never taken from a user."""

import base64
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from tests.api.plane import CERTIFICATE, SECRETS, Plane
from tests.api.process import HOST, Operator, coordinator, operator
from tests.support.control_plane import free_port
from tests.support.polling import until
from trainyard.certificates.contents import CertificateFiles
from trainyard.certificates.issuing import renew
from trainyard.certificates.renewal import decide

ALONE = {"leader_election": "false"}
pytestmark = pytest.mark.usefixtures("granted")


@pytest.fixture(autouse=True)
def empty(plane: Plane) -> Iterator[None]:
    plane.empty_secret()
    yield
    plane.forget(f"{SECRETS}/{CERTIFICATE}")


def issued(at: datetime) -> CertificateFiles:
    return renew(None, decide(None, HOST, at), HOST, at)


def write(plane: Plane, data: Mapping[str, bytes | None]) -> None:
    secret = plane.find(f"{SECRETS}/{CERTIFICATE}")
    values = {name: base64.b64encode(value).decode() for name, value in data.items() if value is not None}
    plane.call("PUT", f"{SECRETS}/{CERTIFICATE}", {**secret, "data": values})


def served(port: int, authority: bytes) -> bytes:
    """The certificate that an agent with this authority sees, in DER."""
    context = ssl.create_default_context(cadata=authority.decode())
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        return connection.getpeercert(binary_form=True) or b""


def writes(plane: Plane, since: int) -> list[int]:
    """The answers to the writes of Secrets."""
    return [each.code for each in plane.requests()[since:] if each.resource == "secrets" and each.writes]


def test_simultaneous_replicas_serve_one_certificate(plane: Plane) -> None:
    before, ports = len(plane.requests()), [free_port(), free_port()]
    with ExitStack() as stack:
        replicas = [Operator(plane, f"certified-{port}", **coordinator(port)) for port in ports]
        for replica in replicas:
            stack.callback(replica.end)
        for replica in replicas:
            replica.until_ready()
        authority = plane.certificate()["ca.crt"]
        assert len({served(port, authority) for port in ports}) == 1
        assert [replica.bugs() for replica in replicas] == [[], []]
    assert writes(plane, before).count(200) == 1
    assert set(writes(plane, before)) <= {200, 409}


def test_a_restart_writes_nothing(plane: Plane) -> None:
    with operator(plane, "first", **ALONE, **coordinator(free_port())):
        known = plane.certificate()
    before, port = len(plane.requests()), free_port()
    with operator(plane, "second", **ALONE, **coordinator(port)):
        served(port, known["ca.crt"])
    assert plane.certificate() == known
    assert writes(plane, before) == []


def test_an_expired_certificate_is_renewed(plane: Plane) -> None:
    old = issued(datetime.now(UTC) - timedelta(days=100))
    write(plane, old.data)
    port = free_port()
    with operator(plane, "renewing", **ALONE, **coordinator(port)):
        until(lambda: plane.certificate()["tls.crt"] != old.certificate, 10, "the renewal")
        served(port, old.authority)
    assert plane.certificate()["ca.crt"] == old.authority


def test_a_missing_secret_is_named_by_readiness(plane: Plane) -> None:
    plane.forget(f"{SECRETS}/{CERTIFICATE}")
    late = Operator(plane, "waiting", **ALONE, **coordinator(free_port()))
    try:
        until(lambda: "it does not exist; create it without data" in late.get("readyz")[1], 30, "readiness")
        assert late.get("healthz")[0] == 200
        plane.empty_secret()
        late.until_ready()
        assert plane.certificate()
        assert late.bugs() == []
    finally:
        late.end()


def test_a_broken_secret_is_reported_and_left(plane: Plane) -> None:
    broken = issued(datetime.now(UTC)).data | {"tls.key": b"torn"}
    write(plane, broken)
    before = len(plane.requests())
    late = Operator(plane, "unhappy", **ALONE, **coordinator(free_port()))
    try:
        until(lambda: "tls.key holds no unencrypted private key" in late.get("readyz")[1], 30, "readiness")
        assert "trainyard_certificate_failures_total" in late.get("metrics")[1]
        assert plane.certificate() == broken
        write(plane, issued(datetime.now(UTC)).data)
        late.until_ready()
        assert late.bugs() == []
    finally:
        late.end()
    assert writes(plane, before) == []
