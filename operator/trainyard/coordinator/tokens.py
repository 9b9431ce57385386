"""Authenticate pods by service account tokens, verified offline with the cluster's own keys. Reports cost no
TokenReview.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import jwt

from trainyard.api.constants import AUDIENCE
from trainyard.coordinator.rejections import RefusedError, RejectionReason

_LOG = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Reads a path of the API server. Raises an Exception whose text is the reason of the failure."""

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/openid/v1/jwks"
"""Every account may read these paths (ClusterRole `system:service-account-issuer-discovery`)."""
KEYS_MEDIA_TYPES = "application/jwk-set+json, application/json"
"""The media types of the two answers; the API server answers 406 to a request that does not accept them."""
ALGORITHMS = ["RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512"]
"""Signatures with a public key. Never `none`, and no shared secret, for which a public key could be mistaken."""
LEEWAY_SECONDS = 10.0
MIN_KEY_REFRESH_SECONDS = 30.0
"""The minimum between two fetches of the keys: tokens with an unknown key must not cause requests."""
MAX_KEY_AGE_SECONDS = 600.0
"""The keys are fetched again at this age: a token that was signed with a withdrawn key is no longer accepted."""
MAX_CACHED_TOKENS = 20_000
"""Verified tokens that are cached: one for each worker, each valid for an hour."""
MAX_TOKEN_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The pod to which a token is bound."""

    namespace: str
    name: str
    uid: str


@dataclass(slots=True)
class TokenVerifier:
    """Verifies tokens. The cluster's keys are fetched for a token with an unknown key, and where they are old."""

    fetch: Fetch
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    """Seconds since 1970 by the clock of the API server, which issues the tokens."""
    _issuer: str = field(default="", init=False)
    _keys: dict[str, jwt.PyJWK] = field(default_factory=dict, init=False)
    _published: list[Any] = field(default_factory=list, init=False)
    """The keys as the cluster has published them."""
    _fetched_at: float = field(default=float("-inf"), init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _verified: dict[bytes, tuple[PodIdentity, float]] = field(default_factory=dict, init=False)

    async def identify(self, token: str) -> PodIdentity:
        """Return the pod that a token is bound to. Raises RefusedError."""
        if len(token) > MAX_TOKEN_BYTES:
            raise RefusedError(RejectionReason.BAD_TOKEN, f"the token is longer than {MAX_TOKEN_BYTES} bytes")
        digest = sha256(token.encode(errors="replace")).digest()
        if self._keys and self.clock() >= self._fetched_at + MAX_KEY_AGE_SECONDS:
            # One request waits for it; where it fails, the earlier keys stay in use.
            await self._refresh()
        if known := self._verified.get(digest):
            identity, expiry = known
            if self.now() < expiry + LEEWAY_SECONDS:
                return identity
            del self._verified[digest]
        claims = self._claims(token, await self._key(token))
        identity = _identity(claims)
        if len(self._verified) >= MAX_CACHED_TOKENS:
            self._verified.clear()
        self._verified[digest] = identity, float(claims["exp"])
        return identity

    async def _key(self, token: str) -> jwt.PyJWK:
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            raise RefusedError(RejectionReason.BAD_TOKEN, f"the token cannot be read: {error}") from error
        name = str(header.get("kid", ""))
        if name not in self._keys:
            await self._refresh()
        if name not in self._keys:
            raise RefusedError(RejectionReason.BAD_TOKEN, "the token was not issued by this cluster")
        return self._keys[name]

    async def _refresh(self) -> None:
        async with self._lock:
            if self.clock() < self._fetched_at + MIN_KEY_REFRESH_SECONDS:
                if not self._keys:
                    raise RefusedError(
                        RejectionReason.KEYS_UNKNOWN, "the cluster's keys could not be read; retry later"
                    )
                return
            self._fetched_at = self.clock()
            try:
                issuer = (await self.fetch(DISCOVERY))["issuer"]
                document = dict(await self.fetch(KEYS))
                keys = jwt.PyJWKSet.from_dict(document).keys
            except Exception as error:
                _LOG.error(
                    f"cannot read the cluster's token keys, rejecting all requests of agents path={KEYS} error={str(error)!r}"
                )
                if not self._keys:
                    raise RefusedError(RejectionReason.KEYS_UNKNOWN, "the cluster's keys cannot be read") from error
                return
            self._issuer, self._keys = str(issuer), {key.key_id: key for key in keys if key.key_id}
            if document["keys"] != self._published:
                self._published = document["keys"]
                self._verified.clear()

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=AUDIENCE,
                issuer=self._issuer,
                # The library knows only this machine's clock: times are checked below.
                options={
                    "require": ["exp", "aud", "iss"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
            not_before, expiry = float(claims.get("nbf", 0)), float(claims["exp"])
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise RefusedError(RejectionReason.BAD_TOKEN, f"the token is not valid here: {error}") from error
        now = self.now()
        if now >= expiry + LEEWAY_SECONDS:
            raise RefusedError(
                RejectionReason.EXPIRED_TOKEN, "the token has expired; read the file again, the kubelet has renewed it"
            )
        if now < not_before - LEEWAY_SECONDS:
            raise RefusedError(RejectionReason.BAD_TOKEN, "the token is not valid yet")
        return claims


def _identity(claims: Mapping[str, Any]) -> PodIdentity:
    try:
        bound = claims["kubernetes.io"]
        return PodIdentity(str(bound["namespace"]), str(bound["pod"]["name"]), str(bound["pod"]["uid"]))
    except (KeyError, TypeError) as error:
        raise RefusedError(RejectionReason.BAD_TOKEN, "the token is not bound to a pod") from error
