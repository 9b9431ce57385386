"""Which pod a token was made for. Checked against the cluster's own keys, so that no request to the API server is made for each report."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import jwt

from trainyard.api.constants import AUDIENCE
from trainyard.coordinator.rejections import RefusedError, Why

_LOG = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Reads a path of the API server. Raises an Exception whose text says why that is not possible."""

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/openid/v1/jwks"
"""Where every account may read how tokens are signed (the ClusterRole `system:service-account-issuer-discovery`)."""
KEYS_FORM = "application/jwk-set+json, application/json"
"""The forms in which a server has these two; it answers 406 to whoever does not name them."""
ALGORITHMS = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"]
"""Signatures with a public key. Never `none`, and none with a shared secret, which a public key could be taken for."""
LEEWAY_SECONDS = 10.0
REFRESH_SECONDS = 30.0
"""The keys are asked for no more often: a token with a key that nobody knows costs its sender nothing."""
MOST_KNOWN = 20_000
"""Tokens that need not be checked again: one for each worker, and each for an hour."""
LONGEST_TOKEN = 16 * 1024


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The pod that a token proves to be."""

    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class Verifier:
    """Checks tokens. The cluster's keys are fetched when a token comes that was signed with an unknown one."""

    fetch: Fetch
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    """Seconds since 1970 by the clock of the API server, which signs the tokens."""
    _issuer: str = field(default="", init=False)
    _keys: dict[str, jwt.PyJWK] = field(default_factory=dict, init=False)
    _fetched: float = field(default=float("-inf"), init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _known: dict[bytes, tuple[PodIdentity, float]] = field(default_factory=dict, init=False)

    async def pod(self, token: str) -> PodIdentity:
        """Who sends it. Raises RefusedError."""
        if len(token) > LONGEST_TOKEN:
            raise RefusedError(Why.BAD_TOKEN, f"the token is longer than {LONGEST_TOKEN} bytes")
        digest = sha256(token.encode(errors="replace")).digest()
        if known := self._known.get(digest):
            identity, expiry = known
            if self.now() < expiry + LEEWAY_SECONDS:
                return identity
            del self._known[digest]
        claims = self._claims(token, await self._key(token))
        identity = _identity(claims)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[digest] = identity, float(claims["exp"])
        return identity

    async def _key(self, token: str) -> jwt.PyJWK:
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise RefusedError(Why.BAD_TOKEN, f"the token cannot be read: {error}") from error
        name = str(header.get("kid", ""))
        if name not in self._keys:
            await self._refresh()
        if name not in self._keys:
            raise RefusedError(Why.BAD_TOKEN, "the token was not signed by this cluster")
        return self._keys[name]

    async def _refresh(self) -> None:
        async with self._lock:
            if self.clock() < self._fetched + REFRESH_SECONDS:
                if not self._keys:
                    raise RefusedError(Why.KEYS_UNKNOWN, "the cluster's keys could not be read; they will be, later")
                return
            self._fetched = self.clock()
            try:
                issuer = (await self.fetch(DISCOVERY))["issuer"]
                keys = jwt.PyJWKSet.from_dict(dict(await self.fetch(KEYS))).keys
            except Exception as error:
                _LOG.error(
                    f"the reports of agents cannot be accepted, because the cluster's keys ({KEYS}) cannot be read: {error}"
                )
                if not self._keys:
                    raise RefusedError(Why.KEYS_UNKNOWN, "the cluster's keys cannot be read") from error
                return
            self._issuer, self._keys = str(issuer), {key.key_id: key for key in keys if key.key_id}

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=AUDIENCE,
                issuer=self._issuer,
                # The library knows no other clock than this machine's: times are looked at below.
                options={
                    "require": ["exp", "aud", "iss"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
            begin, expiry = float(claims.get("nbf", 0)), float(claims["exp"])
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise RefusedError(Why.BAD_TOKEN, f"the token is not valid here: {error}") from error
        now = self.now()
        if now >= expiry + LEEWAY_SECONDS:
            raise RefusedError(Why.EXPIRED_TOKEN, "the token has expired; the kubelet has put a new one there")
        if now < begin - LEEWAY_SECONDS:
            raise RefusedError(Why.BAD_TOKEN, "the token is not valid yet")
        return claims


def _identity(claims: Mapping[str, Any]) -> PodIdentity:
    try:
        bound = claims["kubernetes.io"]
        return PodIdentity(str(bound["namespace"]), str(bound["pod"]["name"]), str(bound["pod"]["uid"]))
    except (KeyError, TypeError) as error:
        raise RefusedError(Why.BAD_TOKEN, "the token is not bound to a pod") from error
