"""Choose where the coordinator's certificate comes from: its Secret, or a folder that others renew. Register its metrics."""

from collections.abc import Callable
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge

from trainyard.controller.bootstrap.certificate_keeper import CertificateKeeper
from trainyard.controller.bootstrap.settings import Settings
from trainyard.coordinator.certificate import Certificate, CertificateFolder
from trainyard.kube.secret import SecretClient
from trainyard.kube.session import Session

CertificateSource = CertificateKeeper | CertificateFolder


def create_certificate_source(
    settings: Settings, session: Session, certificate: Certificate, registry: CollectorRegistry
) -> CertificateSource:
    """Return what loads `certificate`, and keeps it up to date by its `keep`. Raises CertificateError for a folder that
    cannot be used.
    """
    failures = register_certificate_metrics(registry, lambda: certificate.ends.timestamp() if certificate.ends else 0.0)
    if settings.coordinator_secret is None:
        folder = CertificateFolder(settings.coordinator_tls, certificate)
        folder.load()
        return folder
    # A session of its own: a standby may not write by the other one.
    own = Session(session.endpoint, on_request=session.on_request, clock=session.clock)
    own.permissions = session.permissions
    return CertificateKeeper(
        SecretClient(own, session.endpoint.namespace or "default", settings.coordinator_secret),
        certificate,
        host=urlsplit(settings.coordinator_url or "").hostname or "",
        earlier=settings.coordinator_tls,
        now=session.clock.now,
        on_failure=failures.inc,
    )


def register_certificate_metrics(registry: CollectorRegistry, ends: Callable[[], float] = lambda: 0.0) -> Counter:
    """Register the metrics, and return the counter of failures. `ends` returns seconds since 1970, or 0."""
    expiry = Gauge(
        "trainyard_certificate_expiry_timestamp_seconds",
        "When the certificate of the coordinator expires, in seconds since 1970; 0 without one",
        registry=registry,
    )
    expiry.set_function(ends)
    return Counter(
        "trainyard_certificate_failures",
        "Checks of the coordinator's Secret that failed: it cannot be read, used or written",
        registry=registry,
    )
