"""Decide which unauthenticated connections may stay. Pure, but for the clock that is passed in.

Workers come first: their addresses are known from the caches. No namespace and no group of unknown addresses can fill
the listener. A connection that has not yet shown a token gives way to one with a better claim.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from ipaddress import ip_address

from trainyard.coordinator.request_limits import RateLimits, WorkerIndex

MAX_UNAUTHENTICATED_CONNECTIONS = 128
"""Handshakes included. A report takes one or two milliseconds, so all of them delay other work by a fraction of a
second."""
MAX_PER_WORKER, MAX_PER_UNKNOWN_ADDRESS = 4, 16
"""Of the connections, for each worker at an address, and for an address without known workers: agents behind one
translated address share it."""
MIN_AGE_SECONDS = 1.0
"""A connection of this age has had its time to send a token, and gives way to an equal one."""
WORKER_CONNECTIONS_PER_SECOND, WORKER_BURST = 5.0, 50.0
"""New connections of each worker. A handshake costs about a millisecond."""
NAMESPACE_CONNECTIONS_PER_SECOND, NAMESPACE_CONNECTION_BURST = 0.5, 20.0
"""New connections of all workers of a namespace, for each share of it. An agent connects for each report, every 5 seconds or later."""
UNKNOWN_CONNECTIONS_PER_SECOND, UNKNOWN_BURST = 50.0, 200.0
"""New connections of each address without known workers."""
ALL_UNKNOWN_CONNECTIONS_PER_SECOND, ALL_UNKNOWN_BURST = 200.0, 1000.0
"""New connections of all addresses without known workers together."""


@dataclass(eq=False, slots=True)
class Stranger:
    """A connection that no token has authenticated."""

    address: str
    since: float
    """When it was accepted, by the clock of the limits."""
    close: Callable[[], object]
    serving: bool = False
    """Whether a request is being handled: it has limits of its own, and is not interrupted. Its body has arrived."""
    receiving: bool = False
    """Whether the body of a request is arriving: its sender sets the pace. It gives way after all idle ones."""


class Refusal(Enum):
    """Why a new connection is not admitted."""

    CLOSE = auto()
    """Its address or its namespace has more than its share."""
    WAIT = auto()
    """All connections are in use by others with as good a claim."""


@lru_cache(maxsize=16_384)
def plain_address(address: str) -> str:
    """Return an address as pods have it: an IPv4 address that is mapped into IPv6 as IPv4, and without a zone."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if parsed.version == 6 else None
    return str(mapped or parsed)


class ConnectionLimits:
    """The limits on the number and the rate of unauthenticated connections."""

    def __init__(self, workers: WorkerIndex, clock: Callable[[], float]) -> None:
        self.workers = workers
        self.clock = clock
        self._of_workers = RateLimits(WORKER_CONNECTIONS_PER_SECOND, WORKER_BURST, clock)
        self._of_namespaces = RateLimits(NAMESPACE_CONNECTIONS_PER_SECOND, NAMESPACE_CONNECTION_BURST, clock)
        self._of_unknown = RateLimits(UNKNOWN_CONNECTIONS_PER_SECOND, UNKNOWN_BURST, clock)
        self._of_all_unknown = RateLimits(ALL_UNKNOWN_CONNECTIONS_PER_SECOND, ALL_UNKNOWN_BURST, clock)

    def is_within_rate(self, address: str) -> bool:
        """Count a new connection of this address. Return whether it may go on to a handshake."""
        if workers := self.workers.at(address):
            namespace = self.workers.namespace_at(address) or ""
            of_worker = self._of_workers.take(address, workers) == 0.0
            return of_worker and self._of_namespaces.take(namespace, self.workers.shares(namespace)) == 0.0
        return self._of_unknown.take(address) == 0.0 and self._of_all_unknown.take("") == 0.0

    def make_room(self, address: str, strangers: Sequence[Stranger]) -> Stranger | Refusal | None:
        """Return the stranger that gives way to a new connection of this address, why there is none, or None where
        there is room.
        """
        workers = self.workers.at(address)
        own = sum(each.address == address for each in strangers)
        if own >= (MAX_PER_WORKER * workers or MAX_PER_UNKNOWN_ADDRESS):
            return next((each for each in self._patient(strangers) if each.address == address), Refusal.CLOSE)
        if len(strangers) < MAX_UNAUTHENTICATED_CONNECTIONS // 2:
            return None
        namespace_of = self.workers.namespace_at
        namespace, held = namespace_of(address), Counter(namespace_of(each.address) for each in strangers)
        same = (each for each in self._patient(strangers) if namespace_of(each.address) == namespace)
        if self._is_held_to_half(namespace) and held[namespace] >= MAX_UNAUTHENTICATED_CONNECTIONS // 2:
            return next(same, Refusal.CLOSE)
        if len(strangers) < MAX_UNAUTHENTICATED_CONNECTIONS:
            return None
        if namespace is None:
            return next(same, Refusal.CLOSE)
        # In this order: an unknown address, a namespace that holds more, and one that has had its time.
        idle = _oldest_first(strangers)
        unknown = (each for each in idle if namespace_of(each.address) is None)
        greedy = (each for each in idle if held[namespace_of(each.address)] > held[namespace] + 1)
        return next(unknown, None) or next(greedy, None) or next(self._patient(strangers), Refusal.WAIT)

    def _patient(self, strangers: Sequence[Stranger]) -> Iterator[Stranger]:
        """Yield the idle strangers that have had the time to send a token, the oldest first."""
        latest = self.clock() - MIN_AGE_SECONDS
        return (each for each in _oldest_first(strangers) if each.since <= latest)

    def _is_held_to_half(self, namespace: str | None) -> bool:
        """Return whether half of all connections is the most for this namespace: where there are others."""
        return namespace is None or self.workers.namespaces > 1


def _oldest_first(strangers: Sequence[Stranger]) -> list[Stranger]:
    """Return the strangers whose request is not being handled: idle ones first, and of these the oldest."""
    return sorted((each for each in strangers if not each.serving), key=lambda each: (each.receiving, each.since))
