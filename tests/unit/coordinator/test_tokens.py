"""A token identifies only the pod to which it is bound."""

import base64
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from dev.benchmarks.agents.credentials import Issuer
from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.coordinator.tokens import (
    KEYS,
    MAX_KEY_AGE_SECONDS,
    MAX_TOKEN_BYTES,
    MIN_KEY_REFRESH_SECONDS,
    PodIdentity,
    TokenVerifier,
)


class Server:
    """An API server that serves the keys, unless they are removed."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.asked: list[str] = []
        self.down = False
        self.time = 100.0

    async def fetch(self, path: str) -> Mapping[str, Any]:
        self.asked.append(path)
        if self.down:
            raise OSError("connection refused")
        return self.issuer.documents[path]

    def verifier(self) -> TokenVerifier:
        return TokenVerifier(self.fetch, clock=lambda: self.time)


@pytest.fixture
def server() -> Server:
    return Server(Issuer())


async def refusal(verifier: TokenVerifier, token: str) -> RejectionReason:
    with pytest.raises(RefusedError) as refused:
        await verifier.identify(token)
    assert refused.value.message
    return refused.value.reason


async def test_a_token_names_its_pod(server: Server) -> None:
    token = server.issuer.token("uid-1", "lab", "train-worker-0-1")
    assert await server.verifier().identify(token) == PodIdentity("lab", "train-worker-0-1", "uid-1")


async def test_keys_and_verified_tokens_are_cached(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    verifier, token = server.verifier(), server.issuer.token("uid-1")
    await verifier.identify(token)
    monkeypatch.setattr(jwt, "decode", None)
    await verifier.identify(token)
    assert server.asked.count(KEYS) == 1


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": ["https://kubernetes.default.svc"]}, RejectionReason.BAD_TOKEN),
        ({"aud": None}, RejectionReason.BAD_TOKEN),
        ({"iss": "https://another.cluster"}, RejectionReason.BAD_TOKEN),
        ({"exp": None}, RejectionReason.BAD_TOKEN),
        ({"exp": 1}, RejectionReason.EXPIRED_TOKEN),
        ({"nbf": 1 << 40}, RejectionReason.BAD_TOKEN),
        ({"kubernetes.io": None}, RejectionReason.BAD_TOKEN),
        ({"kubernetes.io": {"namespace": "lab", "serviceaccount": {"name": "default"}}}, RejectionReason.BAD_TOKEN),
        ({"kubernetes.io": "lab"}, RejectionReason.BAD_TOKEN),
    ],
)
async def test_tokens_with_wrong_claims_are_rejected(
    server: Server, claims: dict[str, Any], why: RejectionReason
) -> None:
    assert await refusal(server.verifier(), server.issuer.token("uid-1", **claims)) == why


@pytest.mark.parametrize("kid", ["first", "second"])
async def test_withdrawn_key_is_no_longer_accepted(server: Server, kid: str) -> None:
    """Neither for a token that was verified before, nor for a new one; under its name, or another."""
    verifier, withdrawn = server.verifier(), server.issuer
    before = withdrawn.token("uid-1")
    await verifier.identify(before)
    server.issuer = Issuer(kid)
    server.time += MAX_KEY_AGE_SECONDS
    assert await refusal(verifier, before) == RejectionReason.BAD_TOKEN
    assert await refusal(verifier, withdrawn.token("uid-2")) == RejectionReason.BAD_TOKEN
    assert (await verifier.identify(server.issuer.token("uid-1"))).uid == "uid-1"


async def test_old_keys_stay_in_use_without_the_server(server: Server) -> None:
    verifier, token = server.verifier(), server.issuer.token("uid-1")
    await verifier.identify(token)
    server.down = True
    server.time += MAX_KEY_AGE_SECONDS
    assert (await verifier.identify(token)).uid == "uid-1"
    assert (await verifier.identify(server.issuer.token("uid-2"))).uid == "uid-2"


async def test_cached_token_expires(server: Server) -> None:
    verifier, token = server.verifier(), server.issuer.token("uid-1", lasts=60)
    await verifier.identify(token)
    verifier.now = lambda: time.time() + 120
    assert await refusal(verifier, token) == RejectionReason.EXPIRED_TOKEN


@pytest.mark.parametrize("ahead", [-600, 600])
async def test_expiry_uses_the_issuers_clock(server: Server, ahead: int) -> None:
    """The machine is that much ahead of the API server, and has just got to know it."""
    verifier, now = server.verifier(), time.time() - ahead
    verifier.now = lambda: now
    await verifier.identify(server.issuer.token("uid-1", iat=int(now), nbf=int(now), exp=int(now) + 60))


async def test_foreign_signatures_are_rejected(server: Server) -> None:
    verifier = server.verifier()
    await verifier.identify(server.issuer.token("uid-1"))
    forged = Issuer()  # another key under the same name
    assert await refusal(verifier, forged.token("uid-1")) == RejectionReason.BAD_TOKEN
    claims = jwt.decode(server.issuer.token("uid-1"), options={"verify_signature": False})
    unsigned = jwt.encode(claims, "", "none", headers={"kid": "first"})
    assert await refusal(verifier, unsigned) == RejectionReason.BAD_TOKEN
    public = server.issuer.key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "kid": "first"}, claims)
    )
    signature = base64.urlsafe_b64encode(hmac.digest(public, head + b"." + body, "sha256")).rstrip(b"=")
    shared = b".".join((head, body, signature)).decode()
    assert await refusal(verifier, shared) == RejectionReason.BAD_TOKEN


def headed(header: str, claims: str = "{}") -> str:
    """What looks like a token, with this header."""
    parts = [base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in (header, claims)]
    return ".".join([*parts, "AAAA"])


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "a.b.c",
        "a.b",
        "..",
        "é.è.ê",
        "A" * (MAX_TOKEN_BYTES + 1),
        headed("{}"),
        headed("[]"),
        headed("[" * 10_000),
        headed('{"alg": "ES256", "kid": {"a": [1]}}'),
        headed('{"alg": ["ES256"], "kid": "first"}'),
        headed('{"alg": "ES256", "kid": "first", "b64": false, "crit": ["b64"]}'),
        headed('{"alg": "ES256", "kid": "first"}', "[" * 5_000),
    ],
)
async def test_malformed_tokens_are_rejected(server: Server, token: str) -> None:
    assert await refusal(server.verifier(), token) == RejectionReason.BAD_TOKEN


async def test_rotated_keys_are_fetched_with_a_rate_limit(server: Server) -> None:
    verifier, old = server.verifier(), server.issuer
    await verifier.identify(old.token("uid-1"))
    server.issuer = Issuer("second")
    for _ in range(3):
        assert await refusal(verifier, Issuer("third").token("uid-1")) == RejectionReason.BAD_TOKEN
    assert server.asked.count(KEYS) == 1
    server.time += MIN_KEY_REFRESH_SECONDS
    await verifier.identify(server.issuer.token("uid-2"))
    assert server.asked.count(KEYS) == 2


async def test_unreadable_keys_do_not_reject_tokens_as_bad(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.down = True
    verifier, token = server.verifier(), server.issuer.token("uid-1")
    assert await refusal(verifier, token) == RejectionReason.KEYS_UNKNOWN
    assert await refusal(verifier, token) == RejectionReason.KEYS_UNKNOWN
    assert [record.message.count("connection refused") for record in caplog.records] == [1]
    server.down = False
    server.time += MIN_KEY_REFRESH_SECONDS
    assert (await verifier.identify(token)).uid == "uid-1"


async def test_known_keys_survive_a_failed_refresh(server: Server) -> None:
    verifier = server.verifier()
    await verifier.identify(server.issuer.token("uid-1"))
    server.down, server.time = True, server.time + MIN_KEY_REFRESH_SECONDS
    assert await refusal(verifier, Issuer("second").token("uid-1")) == RejectionReason.BAD_TOKEN
    assert (await verifier.identify(server.issuer.token("uid-2"))).uid == "uid-2"
