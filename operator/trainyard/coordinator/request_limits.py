"""Limit the requests of each pod and of each namespace, so that one tenant cannot delay the agents of others."""

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from trainyard.coordinator.rejections import RefusedError, RejectionReason
from trainyard.domain.state.worker_views import PodView

POD_REQUESTS_PER_SECOND, POD_BURST = 4.0, 40.0
"""Of one pod, on both routes. An agent reports every 5 seconds, and asks again when the state of its worker changes."""
NAMESPACE_REQUESTS_PER_SECOND, NAMESPACE_BURST = 1.0, 20.0
"""Of all pods of a namespace, for each share of it. 10,000 agents of one namespace may all ask at the same moment."""
COMMON_SHARES = 20
"""Shares that all namespaces with workers divide among them, each at least one. A namespace has one more for each of its workers.
So a tenant gains little by many namespaces: only workers count."""
ROUNDING_SECONDS = 1e-9
"""By which a sum of intervals may be off."""
MAX_KEYS = 65_536
"""The senders that are remembered. The one that has been silent for longest is forgotten first."""
INDEX_SECONDS = 1.0
"""The age at which the index of workers is rebuilt, where a connection or request needs it."""


class RateLimits:
    """A token bucket for each key. It stores one number a key: the time at which the bucket is full again."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        """`rate`: tokens a second; `burst`: tokens of a full bucket. Both are for one share."""
        self._rate, self._burst, self._clock = rate, burst, clock
        self._full_at: dict[Hashable, float] = {}

    def take(self, key: Hashable, shares: int = 1) -> float:
        """Take a token and return 0, or return the seconds until there is one. `shares` multiplies rate and burst."""
        now, interval = self._clock(), 1.0 / (self._rate * shares)
        full_at = max(now, self._full_at.pop(key, now))
        wait = full_at + interval - now - self._burst / self._rate
        if wait <= ROUNDING_SECONDS:
            wait = 0.0
        self._full_at[key] = full_at if wait else full_at + interval
        if len(self._full_at) > MAX_KEYS:
            # A dict keeps the order of insertion, and each key is inserted again whenever it is used.
            del self._full_at[next(iter(self._full_at))]
        return wait


@dataclass(slots=True)
class WorkerIndex:
    """The known workers by address and by namespace, at most a second old."""

    pods: Callable[[], Iterable[PodView]]
    """Returns the pods of all jobs, from the caches."""
    clock: Callable[[], float] = time.monotonic
    _built_at: float = field(default=float("-inf"), init=False)
    _by_address: dict[str, list[str]] = field(default_factory=dict, init=False)
    _by_namespace: dict[str, int] = field(default_factory=dict, init=False)
    _common_share: int = field(default=COMMON_SHARES, init=False)

    def at(self, address: str) -> int:
        """Return the number of workers at this address: several where they use their node's network."""
        self._refresh()
        return len(self._by_address.get(address, ()))

    def namespace_at(self, address: str) -> str | None:
        """Return the namespace of the first worker at this address; None where there is no known worker."""
        self._refresh()
        return next(iter(self._by_address.get(address, ())), None)

    @property
    def namespaces(self) -> int:
        """The number of namespaces with workers."""
        self._refresh()
        return len(self._by_namespace)

    def in_namespace(self, namespace: str) -> int:
        """Return the number of workers in this namespace."""
        self._refresh()
        return self._by_namespace.get(namespace, 0)

    def shares(self, namespace: str) -> int:
        """Return the share of this namespace in limits that grow with its workers."""
        self._refresh()
        return self._by_namespace.get(namespace, 0) + self._common_share

    def _refresh(self) -> None:
        if self.clock() - self._built_at < INDEX_SECONDS:
            return
        by_address: dict[str, list[str]] = {}
        by_namespace: dict[str, int] = {}
        for pod in self.pods():
            by_address.setdefault(pod.ip, []).append(pod.namespace)
            by_namespace[pod.namespace] = by_namespace.get(pod.namespace, 0) + 1
        by_address.pop("", None)
        self._by_address, self._by_namespace, self._built_at = by_address, by_namespace, self.clock()
        self._common_share = max(1, COMMON_SHARES // max(1, len(by_namespace)))


class RequestLimits:
    """The limits on the requests of known workers. Nothing is counted for other pods: their requests are refused."""

    def __init__(self, workers: WorkerIndex, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._pods = RateLimits(POD_REQUESTS_PER_SECOND, POD_BURST, clock)
        self._namespaces = RateLimits(NAMESPACE_REQUESTS_PER_SECOND, NAMESPACE_BURST, clock)

    def check(self, pod: PodView) -> None:
        """Count a request of this pod. Raises RefusedError where the pod or its namespace has made too many."""
        if wait := self._pods.take(pod.uid):
            raise RefusedError(RejectionReason.TOO_OFTEN, f"pod {pod.name} sends too many requests", wait)
        if wait := self._namespaces.take(pod.namespace, self._workers.shares(pod.namespace)):
            raise RefusedError(
                RejectionReason.TOO_OFTEN, f"the workers in namespace {pod.namespace} send too many requests", wait
            )
