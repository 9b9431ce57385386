"""Tokens of pods and certificates, as a cluster and a chart would make them."""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm

from trainyard.coordinator.tokens import DISCOVERY, KEYS

ISSUER = "https://kubernetes.default.svc"


class Issuer:
    """A cluster's keys, and the tokens that are signed with them."""

    def __init__(self, kid: str = "first") -> None:
        self.kid = kid
        self.key = ec.generate_private_key(ec.SECP256R1())

    @property
    def documents(self) -> dict[str, dict[str, Any]]:
        """What the API server answers, by path."""
        public = json.loads(ECAlgorithm.to_jwk(self.key.public_key()))
        return {DISCOVERY: {"issuer": ISSUER}, KEYS: {"keys": [{**public, "kid": self.kid, "alg": "ES256"}]}}

    def token(
        self, uid: str, namespace: str = "lab", name: str = "pod", *, lasts: float = 3600, **claims: object
    ) -> str:
        """A pod's projected token; `claims` come in place of, or beside, those that it has. None: that one is missing."""
        now = int(time.time())
        bound = {"namespace": namespace, "pod": {"name": name, "uid": uid}, "serviceaccount": {"name": "default"}}
        made = {"iss": ISSUER, "aud": ["trainyard"], "iat": now, "nbf": now - 3600, "exp": int(now + lasts)}
        whole = {**made, "kubernetes.io": bound, **claims}
        sound = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(sound, self.key, "ES256", headers={"kid": self.kid})


def certificate(folder: Path, name: str = "localhost") -> str:
    """Write `tls.crt`, `tls.key` and `ca.crt` for this name, and return the last."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainyard-ca")])
    authority = _signed(authority_name, authority_name, authority_key, authority_key, {}, ca=True)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = {"san": x509.SubjectAlternativeName([x509.DNSName(name)])}
    leaf = _signed(subject, authority_name, key, authority_key, names, ca=False)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tls.crt").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (folder / "tls.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    pem = authority.public_bytes(serialization.Encoding.PEM)
    (folder / "ca.crt").write_bytes(pem)
    return pem.decode()


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    extensions: Mapping[str, x509.ExtensionType],
    *,
    ca: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
    for extension in extensions.values():
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(by, hashes.SHA256())
