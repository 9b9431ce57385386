"""Where the coordinator's certificate comes from, and its metrics."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dev.benchmarks.agents.credentials import certificate
from tests.support.fake_api import FakeApi
from trainyard.certificates.contents import CertificateError
from trainyard.controller.bootstrap.certificate_keeper import CertificateKeeper
from trainyard.controller.bootstrap.certificate_source import create_certificate_source
from trainyard.controller.bootstrap.settings import Settings
from trainyard.coordinator.certificate import Certificate, CertificateFolder
from trainyard.kube.secret import SECRETS

URL = "https://trainyard-coordinator.sys.svc:8443"
EXPIRY, FAILURES = "trainyard_certificate_expiry_timestamp_seconds", "trainyard_certificate_failures_total"


async def test_folder_is_loaded_at_once(api: FakeApi, tmp_path: Path) -> None:
    certificate(tmp_path)
    registry, used = CollectorRegistry(), Certificate()
    source = create_certificate_source(
        Settings(coordinator_url=URL, coordinator_tls=tmp_path), api.session(), used, registry
    )
    assert isinstance(source, CertificateFolder)
    assert used.loaded.is_set()
    assert used.ends is not None
    assert registry.get_sample_value(EXPIRY) == used.ends.timestamp()


async def test_unusable_folder_stops_the_process(api: FakeApi, tmp_path: Path) -> None:
    settings = Settings(coordinator_url=URL, coordinator_tls=tmp_path)
    with pytest.raises(CertificateError, match=r"tls\.crt cannot be read"):
        create_certificate_source(settings, api.session(), Certificate(), CollectorRegistry())


async def test_secret_is_kept_in_the_own_namespace(api: FakeApi, tmp_path: Path) -> None:
    registry, used, session = CollectorRegistry(), Certificate(), api.session()
    settings = Settings(coordinator_url=URL, coordinator_tls=tmp_path, coordinator_secret="cert")
    keeper = create_certificate_source(settings, session, used, registry)
    assert isinstance(keeper, CertificateKeeper)
    assert (keeper.client.namespace, keeper.client.name, keeper.host) == (
        "default",
        "cert",
        "trainyard-coordinator.sys.svc",
    )
    try:
        assert not await keeper.check()
        assert (registry.get_sample_value(EXPIRY), registry.get_sample_value(FAILURES)) == (0, 1)
        api.cluster.create(SECRETS, "default", {"metadata": {"name": "cert", "namespace": "default"}})
        assert await keeper.check()
    finally:
        await keeper.client.session.close()
    assert used.ends is not None
    assert registry.get_sample_value(EXPIRY) == used.ends.timestamp()


async def test_standby_may_write_its_certificate(api: FakeApi, tmp_path: Path) -> None:
    """A session of its own: the other one refuses writes of processes that do not lead."""
    session = api.session()

    def refuse() -> float:
        raise AssertionError("a standby asked for a permit")

    session.permit = refuse
    settings = Settings(coordinator_url=URL, coordinator_tls=tmp_path, coordinator_secret="cert")
    keeper = create_certificate_source(settings, session, Certificate(), CollectorRegistry())
    assert isinstance(keeper, CertificateKeeper)
    assert keeper.client.session.permissions is session.permissions
    api.cluster.create(SECRETS, "default", {"metadata": {"name": "cert", "namespace": "default"}})
    try:
        assert await keeper.check()
    finally:
        await keeper.client.session.close()


def test_empty_secret_name_means_the_folder() -> None:
    assert Settings(coordinator_secret="").coordinator_secret is None
