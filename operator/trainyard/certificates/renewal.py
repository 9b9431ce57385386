"""Decide which certificates to renew. Pure: the time is passed in."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from cryptography import x509

from trainyard.certificates.contents import Contents

RENEW_AFTER_FRACTION = 2 / 3
"""The share of its lifetime after which a certificate is renewed. The rest is the time to repair a failing renewal."""


class RenewalReason(StrEnum):
    """Why a certificate is replaced."""

    MISSING = "Missing"
    DUE = "Due"
    """Two thirds of its lifetime are over, or all of it."""
    NOT_YET_VALID = "NotYetValid"
    """It was issued while a clock was ahead."""
    HOST_CHANGED = "HostChanged"
    """It does not have the name by which workers reach the operator."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """What is to be renewed, and why. Both None: nothing."""

    authority: RenewalReason | None = None
    serving: RenewalReason | None = None

    def __bool__(self) -> bool:
        return self.authority is not None or self.serving is not None


def decide(contents: Contents | None, host: str, now: datetime) -> Renewal:
    """Return what is due. `contents` None: nothing is stored. Contents of somebody else are never due."""
    if contents is None:
        return Renewal(RenewalReason.MISSING, RenewalReason.MISSING)
    if contents.issuer is None:
        return Renewal()
    serving = _due(contents.serving, now)
    if host not in _names(contents.serving):
        serving = RenewalReason.HOST_CHANGED
    return Renewal(_due(contents.issuer.certificate, now), serving)


def _due(certificate: x509.Certificate, now: datetime) -> RenewalReason | None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return RenewalReason.NOT_YET_VALID
    return RenewalReason.DUE if now >= begins + (ends - begins) * RENEW_AFTER_FRACTION else None


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, ValueError):
        return []
    return names.get_values_for_type(x509.DNSName)
