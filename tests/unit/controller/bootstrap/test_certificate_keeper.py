"""The certificate in its Secret: first issue, renewal, two processes, and everything that somebody may do to the Secret."""

import asyncio
import base64
import logging
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.agents.credentials import certificate
from tests.support.fake_api import FakeApi
from tests.support.fake_cluster import Json
from tests.support.handshakes import shake_hands
from tests.support.waiting import until
from trainyard.certificates.contents import CertificateFiles, parse
from trainyard.controller.bootstrap import certificate_keeper
from trainyard.controller.bootstrap.certificate_keeper import CertificateKeeper
from trainyard.coordinator.certificate import Certificate, read_folder
from trainyard.kube.secret import SECRETS, SecretClient

HOME, NAME, HOST = "home", "trainyard-coordinator-cert", "localhost"
EMPTY: Json = {"metadata": {"name": NAME, "namespace": HOME}, "type": "Opaque"}


@dataclass
class Site:
    """A Secret as the chart makes it, and the operators that use it."""

    api: FakeApi
    folder: Path
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    failures: int = 0

    def keeper(self) -> CertificateKeeper:
        client = SecretClient(self.api.session(), HOME, NAME)
        return CertificateKeeper(client, Certificate(), HOST, self.folder, lambda: self.now, self.count)

    def count(self) -> None:
        self.failures += 1

    def create(self, data: dict[str, bytes] | None = None) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in (data or {}).items()}
        self.api.cluster.create(SECRETS, HOME, EMPTY | ({"data": encoded} if encoded else {}))

    def write(self, **data: bytes | None) -> None:
        """Change files, with `_` for the dot; None removes one."""
        changed = {
            key.replace("_", "."): value if value is None else base64.b64encode(value).decode()
            for key, value in data.items()
        }
        self.api.cluster.merge(SECRETS, HOME, NAME, {"data": changed})

    @property
    def stored(self) -> CertificateFiles:
        data = self.api.cluster.get(SECRETS, HOME, NAME).get("data") or {}
        return CertificateFiles.from_data({key: base64.b64decode(value) for key, value in data.items()})


@pytest.fixture
def site(api: FakeApi, tmp_path: Path) -> Site:
    return Site(api, tmp_path / "none")


async def test_empty_secret_gets_a_certificate(site: Site) -> None:
    site.create()
    keeper = site.keeper()
    assert keeper.obstacle() == (f"the coordinator has no certificate: the Secret {HOME}/{NAME} has not been read yet")
    assert await keeper.check()
    assert parse(site.stored).issuer is not None
    assert keeper.obstacle() == keeper.problem == ""
    shake_hands(keeper.certificate.context, keeper.certificate.authority, HOST)


async def test_valid_certificate_is_not_written_again(site: Site) -> None:
    site.create()
    await site.keeper().check()
    another = site.keeper()
    with site.api.no_calls(writes_only=True):
        assert await another.check()
        assert await another.check()
    assert another.certificate.authority == site.stored.authority.decode()


async def test_simultaneous_replicas_serve_one_certificate(site: Site) -> None:
    site.create()
    first, second = site.keeper(), site.keeper()
    results = await asyncio.gather(first.check(), second.check())
    assert sorted(results) == [False, True]
    assert site.failures == 0, "the one that lost reads again"
    assert await first.check()
    assert await second.check()
    assert first.certificate.authority == second.certificate.authority == site.stored.authority.decode()
    for server in (first, second):
        for agent in (first, second):
            shake_hands(server.certificate.context, agent.certificate.authority, HOST)


async def test_due_certificate_is_renewed_and_still_trusted(site: Site) -> None:
    site.create()
    keeper = site.keeper()
    await keeper.check()
    before, known = site.stored, keeper.certificate.authority
    site.now += timedelta(days=61)
    assert await keeper.check()
    assert site.stored.certificate != before.certificate
    assert site.stored.authority == before.authority
    assert keeper.certificate.ends is not None
    assert keeper.certificate.ends > site.now + timedelta(days=88)
    assert keeper.certificate.authority == known


async def test_renewed_authority_is_trusted_by_old_workers(site: Site) -> None:
    site.now -= timedelta(days=2500)
    site.create()
    keeper = site.keeper()
    await keeper.check()
    old = keeper.certificate.authority
    site.now += timedelta(days=2500)
    assert await keeper.check()
    assert keeper.certificate.authority != old
    shake_hands(keeper.certificate.context, old, HOST)
    shake_hands(keeper.certificate.context, keeper.certificate.authority, HOST)


async def test_certificate_of_the_chart_is_adopted(site: Site) -> None:
    old = certificate(site.folder)
    site.create()
    # The certificate of these tests is valid for a day, of which an hour is over.
    keeper = site.keeper()
    assert await keeper.check()
    assert (site.stored.certificate, site.stored.key) == (
        read_folder(site.folder).certificate,
        read_folder(site.folder).key,
    )
    shake_hands_as_before(keeper, old)
    shake_hands_as_before(keeper, keeper.certificate.authority)
    site.now += timedelta(hours=20)
    assert await keeper.check()
    assert site.stored.certificate != read_folder(site.folder).certificate
    shake_hands(keeper.certificate.context, keeper.certificate.authority, HOST)


def shake_hands_as_before(keeper: CertificateKeeper, authority: str) -> None:
    """Without the extensions that certificates of Helm lack."""
    shake_hands(keeper.certificate.context, authority, HOST, strict=False)


async def test_unusable_certificate_of_the_chart_is_replaced(site: Site) -> None:
    certificate(site.folder)
    (site.folder / "ca.crt").unlink()
    site.create()
    keeper = site.keeper()
    assert await keeper.check()
    assert site.stored.certificate != read_folder(site.folder).certificate


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"tls_crt": b"torn"}, "tls.crt holds no certificate in PEM"),
    ({"tls_key": b"torn"}, "tls.key holds no unencrypted private key"),
    ({"tls_key": None}, "tls.key is missing"),
    ({"ca_crt": b"torn"}, "ca.crt holds no certificate in PEM"),
    ({"ca_key": b"torn"}, "ca.key holds no unencrypted private key"),
    ({"ca_key": None, "tls_key": b"torn"}, "tls.crt and tls.key do not make a certificate"),
]


@pytest.mark.parametrize(("data", "words"), BROKEN, ids=[words for _, words in BROKEN])
async def test_broken_secret_is_reported_and_left(
    site: Site, caplog: pytest.LogCaptureFixture, data: dict[str, Any], words: str
) -> None:
    site.create()
    keeper = site.keeper()
    await keeper.check()
    known = keeper.certificate.authority
    site.write(**data)
    with site.api.no_calls(writes_only=True):
        assert not await keeper.check()
        assert not await keeper.check()
        late = site.keeper()
        assert not await late.check()
    assert words in keeper.problem
    assert words in late.obstacle()
    assert [record.levelno for record in caplog.records if words in record.message] == [logging.ERROR] * 2
    assert site.failures == 3
    assert keeper.obstacle() == ""
    shake_hands(keeper.certificate.context, known, HOST)


async def test_users_own_certificate_is_served_and_kept(site: Site) -> None:
    authority = certificate(site.folder)
    own = read_folder(site.folder)
    site.folder = site.folder / "none"
    site.create({name: value for name, value in own.data.items() if value})
    keeper = site.keeper()
    with site.api.no_calls(writes_only=True):
        assert await keeper.check()
        shake_hands_as_before(keeper, authority)
        site.now += timedelta(days=2)
        assert not await keeper.check()
    assert "the operator renews only its own" in keeper.problem
    assert keeper.obstacle() == "", "agents may still be served by a clock that is right"


async def test_deleted_secret_keeps_the_certificate(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.create()
    keeper = site.keeper()
    await keeper.check()
    before = site.stored
    site.api.cluster.delete(SECRETS, HOME, NAME)
    assert not await keeper.check()
    assert f"the Secret {HOME}/{NAME}: it does not exist" in keeper.problem
    assert keeper.obstacle() == ""
    site.create()
    assert await keeper.check()
    assert site.stored == before, "running workers trust it"
    assert "restoring the certificate of an emptied Secret" in caplog.text


async def test_missing_secret_is_an_obstacle(site: Site) -> None:
    keeper = site.keeper()
    assert not await keeper.check()
    assert f"no certificate: the Secret {HOME}/{NAME}: it does not exist" in keeper.obstacle()


async def test_certificates_from_a_wrong_clock_are_replaced(site: Site) -> None:
    right = site.now
    site.now = right + timedelta(days=400)
    site.create()
    keeper = site.keeper()
    await keeper.check()
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        shake_hands(keeper.certificate.context, keeper.certificate.authority, HOST)
    site.now = right
    assert await keeper.check()
    shake_hands(keeper.certificate.context, keeper.certificate.authority, HOST)


@pytest.mark.parametrize("fault", [{"status": 503}, {"drop": True}, {"status": 500, "text": "<html>"}], ids=str)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_silent_api_server_is_retried(
    site: Site, monkeypatch: pytest.MonkeyPatch, method: str, fault: Json
) -> None:
    monkeypatch.setattr(certificate_keeper, "MAX_RETRY_SECONDS", 0.01)
    site.create()
    site.api.fault(method=method, path=".*/secrets/.*", times=3, **fault)
    keeper = site.keeper()
    task = asyncio.create_task(keeper.keep())
    try:
        await until(keeper.certificate.loaded.is_set)
    finally:
        task.cancel()
    # The HTTP client itself repeats a request whose connection was dropped.
    assert 1 <= site.failures <= 3
    assert keeper.certificate.authority == site.stored.authority.decode()


async def test_lost_answer_of_a_write_changes_nothing(site: Site) -> None:
    site.create()
    site.api.fault(method="PUT", path=".*/secrets/.*", lose_answer=True)
    keeper = site.keeper()
    assert not await keeper.check()
    before = site.stored
    assert before
    assert await keeper.check()
    assert site.stored == before


async def test_missing_permission_keeps_a_valid_certificate(site: Site) -> None:
    site.create()
    await site.keeper().check()
    site.now += timedelta(days=61)
    site.api.fault(method="PUT", path=".*/secrets/.*", status=403, reason="Forbidden", message="no")
    keeper = site.keeper()
    assert not await keeper.check()
    assert keeper.problem == "Forbidden (403): no"
    assert keeper.obstacle() == ""
    assert await keeper.check()
