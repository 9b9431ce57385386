"""Credentials for the API server, from the pod's service account or a kubeconfig. The only user of the `kubernetes`
package.
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from kubernetes import client, config

from trainyard.kube.session import Endpoint, RequestObserver, Session
from trainyard.kube.token_bucket import TokenBucket

_LOG = logging.getLogger(__name__)
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_HEADER_CACHE_SECONDS = 30.0
"""How long a header is cached. The kubelet replaces projected tokens after 80 % of their lifetime (1 h)."""


class LoginError(Exception):
    """Credentials are missing or cannot be read."""


def connect(
    context: str | None = None, *, on_request: RequestObserver | None = None, budget: TokenBucket | None = None
) -> Session:
    """Return a session with the cluster this pod runs in, or with the kubeconfig's (`context`, else its current one).

    Raises `LoginError`. Blocks while the kubeconfig's exec plugin runs.
    """
    return Session(endpoint(context), on_request=on_request, budget=budget)


def endpoint(context: str | None = None) -> Endpoint:
    """Return the address of the API server and the credentials for it."""
    settings = client.Configuration(
        proxy=""
    )  # "": leave the environment's proxies to the session, which honours NO_PROXY
    in_cluster = context is None and "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
    try:
        if in_cluster:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]  # has no types
        else:
            config.load_kube_config(context=context, client_configuration=settings)  # type: ignore[no-untyped-call]  # has no types
        authorization = TokenSource(lambda: _header(settings))
    except (config.ConfigException, OSError) as error:
        where = (
            "this pod's service account"
            if in_cluster
            else f"the kubeconfig{f' (context {context})' if context else ''}"
        )
        raise LoginError(f"cannot log in with {where}: {error}. Set KUBECONFIG, or run inside a cluster.") from error
    return Endpoint(
        server=str(settings.host).rstrip("/"),
        tls=_tls(settings),
        authorization=authorization,
        proxy=settings.proxy or None,
        tls_server_name=settings.tls_server_name,
        namespace=_own_namespace() if in_cluster else _context_namespace(context),
    )


class TokenSource:
    """The Authorization header, cached for a while and then read again.

    Reading may open a file or run an exec plugin. It runs in a thread, once for all requests that wait for it. Where it
    fails the last header stays in use: it is valid for some time, and the server rejects it afterwards.
    """

    def __init__(
        self,
        read: Callable[[], str | None],
        *,
        keep: float = _HEADER_CACHE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._keep = keep
        self._clock = clock
        self._lock = asyncio.Lock()
        self._header = read()
        self._read_at = clock()

    async def __call__(self) -> str | None:
        """Return the current value of the header."""
        if self._fresh():
            return self._header
        async with self._lock:
            if not self._fresh():
                try:
                    self._header = await asyncio.to_thread(self._read)
                except (config.ConfigException, OSError) as error:
                    _LOG.warning(f"cannot read the API token again, keeping the last one error={str(error)!r}")
                self._read_at = self._clock()
            return self._header

    def _fresh(self) -> bool:
        return self._clock() - self._read_at < self._keep


def _own_namespace() -> str | None:
    return _NAMESPACE_FILE.read_text().strip() if _NAMESPACE_FILE.exists() else None


def _context_namespace(context: str | None) -> str | None:
    """Return the context's namespace, or None."""
    contexts, current = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]  # has no types
    chosen = current if context is None else next(c for c in contexts if c["name"] == context)
    namespace: str | None = chosen["context"].get("namespace")
    return namespace


def _header(settings: client.Configuration) -> str | None:
    # Reading the key runs the package's refresh hook, which reads the token file or runs the exec plugin again.
    token: str | None = settings.get_api_key_with_prefix("BearerToken", alias="authorization")
    if not token:
        return None
    # "bearer x" from a service account, perhaps with a trailing newline; "Basic x" for a user with a password.
    scheme, _, value = token.strip().rpartition(" ")
    return f"{scheme.title() or 'Bearer'} {value}"


def _tls(settings: client.Configuration) -> ssl.SSLContext | None:
    if not settings.host.startswith("https"):
        return None
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    return context
