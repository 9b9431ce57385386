"""Who a token proves to be: only the pod that the cluster made it for."""

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
from trainyard.coordinator.rejections import RefusedError, Why
from trainyard.coordinator.tokens import KEYS, LONGEST_TOKEN, REFRESH_SECONDS, PodIdentity, Verifier


class Server:
    """An API server that knows the keys, unless it is told to forget them."""

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

    def verifier(self) -> Verifier:
        return Verifier(self.fetch, clock=lambda: self.time)


@pytest.fixture
def server() -> Server:
    return Server(Issuer())


async def refusal(verifier: Verifier, token: str) -> Why:
    with pytest.raises(RefusedError) as refused:
        await verifier.pod(token)
    assert refused.value.message
    return refused.value.why


async def test_a_token_names_its_pod(server: Server) -> None:
    token = server.issuer.token("uid-1", "lab", "train-worker-0-1")
    assert await server.verifier().pod(token) == PodIdentity("lab", "train-worker-0-1", "uid-1")


async def test_the_keys_are_asked_for_once_and_a_token_is_checked_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier, token = server.verifier(), server.issuer.token("uid-1")
    await verifier.pod(token)
    monkeypatch.setattr(jwt, "decode", None)
    await verifier.pod(token)
    assert server.asked.count(KEYS) == 1


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": ["https://kubernetes.default.svc"]}, Why.BAD_TOKEN),
        ({"aud": None}, Why.BAD_TOKEN),
        ({"iss": "https://another.cluster"}, Why.BAD_TOKEN),
        ({"exp": None}, Why.BAD_TOKEN),
        ({"exp": 1}, Why.EXPIRED_TOKEN),
        ({"nbf": 1 << 40}, Why.BAD_TOKEN),
        ({"kubernetes.io": None}, Why.BAD_TOKEN),
        ({"kubernetes.io": {"namespace": "lab", "serviceaccount": {"name": "default"}}}, Why.BAD_TOKEN),
        ({"kubernetes.io": "lab"}, Why.BAD_TOKEN),
    ],
)
async def test_tokens_for_something_else_are_refused(server: Server, claims: dict[str, Any], why: Why) -> None:
    assert await refusal(server.verifier(), server.issuer.token("uid-1", **claims)) == why


async def test_a_token_that_was_good_expires(server: Server) -> None:
    verifier, token = server.verifier(), server.issuer.token("uid-1", lasts=60)
    await verifier.pod(token)
    verifier.now = lambda: time.time() + 120
    assert await refusal(verifier, token) == Why.EXPIRED_TOKEN


@pytest.mark.parametrize("ahead", [-600, 600])
async def test_a_token_is_good_by_the_clock_of_who_signed_it(server: Server, ahead: int) -> None:
    """The machine is that much ahead of the API server, and has just got to know it."""
    verifier, now = server.verifier(), time.time() - ahead
    verifier.now = lambda: now
    await verifier.pod(server.issuer.token("uid-1", iat=int(now), nbf=int(now), exp=int(now) + 60))


async def test_signatures_of_others_are_refused(server: Server) -> None:
    verifier = server.verifier()
    await verifier.pod(server.issuer.token("uid-1"))
    forged = Issuer()  # another key under the same name
    assert await refusal(verifier, forged.token("uid-1")) == Why.BAD_TOKEN
    claims = jwt.decode(server.issuer.token("uid-1"), options={"verify_signature": False})
    unsigned = jwt.encode(claims, "", "none", headers={"kid": "first"})
    assert await refusal(verifier, unsigned) == Why.BAD_TOKEN
    public = server.issuer.key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "kid": "first"}, claims)
    )
    signature = base64.urlsafe_b64encode(hmac.digest(public, head + b"." + body, "sha256")).rstrip(b"=")
    shared = b".".join((head, body, signature)).decode()
    assert await refusal(verifier, shared) == Why.BAD_TOKEN


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
        "A" * (LONGEST_TOKEN + 1),
        headed("{}"),
        headed("[]"),
        headed("[" * 10_000),
        headed('{"alg": "ES256", "kid": {"a": [1]}}'),
        headed('{"alg": ["ES256"], "kid": "first"}'),
        headed('{"alg": "ES256", "kid": "first", "b64": false, "crit": ["b64"]}'),
        headed('{"alg": "ES256", "kid": "first"}', "[" * 5_000),
    ],
)
async def test_what_is_no_token_is_refused(server: Server, token: str) -> None:
    assert await refusal(server.verifier(), token) == Why.BAD_TOKEN


async def test_new_keys_are_found_and_unknown_ones_asked_for_now_and_then(server: Server) -> None:
    verifier, old = server.verifier(), server.issuer
    await verifier.pod(old.token("uid-1"))
    server.issuer = Issuer("second")
    for _ in range(3):
        assert await refusal(verifier, Issuer("third").token("uid-1")) == Why.BAD_TOKEN
    assert server.asked.count(KEYS) == 1
    server.time += REFRESH_SECONDS
    await verifier.pod(server.issuer.token("uid-2"))
    assert server.asked.count(KEYS) == 2


async def test_while_the_keys_cannot_be_read_nobody_is_called_a_liar(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.down = True
    verifier, token = server.verifier(), server.issuer.token("uid-1")
    assert await refusal(verifier, token) == Why.KEYS_UNKNOWN
    assert await refusal(verifier, token) == Why.KEYS_UNKNOWN
    assert [record.message.count("connection refused") for record in caplog.records] == [1]
    server.down = False
    server.time += REFRESH_SECONDS
    assert (await verifier.pod(token)).uid == "uid-1"


async def test_keys_that_are_known_last_while_new_ones_cannot_be_read(server: Server) -> None:
    verifier = server.verifier()
    await verifier.pod(server.issuer.token("uid-1"))
    server.down, server.time = True, server.time + REFRESH_SECONDS
    assert await refusal(verifier, Issuer("second").token("uid-1")) == Why.BAD_TOKEN
    assert (await verifier.pod(server.issuer.token("uid-2"))).uid == "uid-2"
