"""What a cluster and a chart would make: keys, tokens of pods, a certificate."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm

from trainyard.api.constants import AUDIENCE
from trainyard.coordinator.tokens import DISCOVERY, KEYS

ISSUER = "https://kubernetes.default.svc"


class Issuer:
    """Signs the tokens of its pods."""

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
        made = {"iss": ISSUER, "aud": [AUDIENCE], "iat": now, "nbf": now - 3600, "exp": int(now + lasts)}
        whole = {**made, "kubernetes.io": bound, **claims}
        sound = {name: value for name, value in whole.items() if value is not None}
        return jwt.encode(sound, self.key, "ES256", headers={"kid": self.kid})


def certificate(folder: Path, name: str = "localhost") -> str:
    """Write `tls.crt`, `tls.key` and `ca.crt` for this name, and return the last."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "trainyard-ca")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.DNSName(name)])
    authority = _unsigned(authority_name, authority_name, authority_key, ca=True).sign(authority_key, hashes.SHA256())
    leaf = _unsigned(subject, authority_name, key, ca=False).add_extension(names, critical=False)
    folder.mkdir(parents=True, exist_ok=True)
    pem = serialization.Encoding.PEM
    (folder / "tls.crt").write_bytes(leaf.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "tls.key").write_bytes(private)
    (folder / "ca.crt").write_bytes(authority.public_bytes(pem))
    return (folder / "ca.crt").read_text()


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=24))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    )
