"""Which unauthenticated connections may stay."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, strategies as st

from tests.support.jobs import job
from trainyard.coordinator.connection_limits import (
    ALL_UNKNOWN_BURST,
    MAX_PER_UNKNOWN_ADDRESS,
    MAX_PER_WORKER,
    MAX_UNAUTHENTICATED_CONNECTIONS,
    UNKNOWN_BURST,
    WORKER_BURST,
    ConnectionLimits,
    Refusal,
    Stranger,
    plain_address,
)
from trainyard.coordinator.request_limits import WorkerIndex
from trainyard.domain.state.worker_views import PodView

HALF = MAX_UNAUTHENTICATED_CONNECTIONS // 2
LAB, MALLORY, UNKNOWN = "10.1", "10.2", "19.2"
YOUNG, OLD = 0.5, 2.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


def workers(network: str, namespace: str, count: int = 200) -> list[PodView]:
    (pod,) = job(1).running().pods
    return [replace(pod, uid=f"{network}-{n}", namespace=namespace, ip=f"{network}.0.{n}") for n in range(count)]


BOTH = workers(LAB, "lab") + workers(MALLORY, "mallory")
ONE = workers(LAB, "lab")


def limits(pods: list[PodView]) -> ConnectionLimits:
    return ConnectionLimits(WorkerIndex(lambda: pods, CLOCK), CLOCK)


def held(network: str, count: int, age: float = OLD, *, serving: bool = False) -> list[Stranger]:
    """Connections of as many addresses."""
    return [Stranger(f"{network}.0.{n}", CLOCK.now - age, lambda: None, serving) for n in range(count)]


@dataclass(frozen=True)
class Case:
    name: str
    newcomer: str
    """The network of its address."""
    strangers: list[Stranger]
    then: str | Refusal | None
    """The network of the stranger that gives way."""
    pods: tuple[PodView, ...] = tuple(BOTH)


CASES = [
    Case("there is room", LAB, held(UNKNOWN, HALF), None),
    Case("unknown addresses hold half", UNKNOWN, held(UNKNOWN, HALF), UNKNOWN),
    Case("unknown addresses hold half, all young", UNKNOWN, held(UNKNOWN, HALF, YOUNG), Refusal.CLOSE),
    Case("a namespace holds half", MALLORY, held(MALLORY, HALF), MALLORY),
    Case("a namespace holds half, all young", MALLORY, held(MALLORY, HALF, YOUNG), Refusal.CLOSE),
    Case("another namespace holds half", LAB, held(MALLORY, HALF, YOUNG), None),
    Case("full, half of it unknown", LAB, held(MALLORY, HALF, YOUNG) + held(UNKNOWN, HALF, YOUNG), UNKNOWN),
    Case("full of a greedy namespace", LAB, held(MALLORY, 2 * HALF, YOUNG), MALLORY),
    Case("full of workers, and unknown itself", UNKNOWN, held(MALLORY, HALF) + held(LAB, HALF), Refusal.CLOSE),
    Case("full of requests in progress", LAB, held(MALLORY, 2 * HALF, serving=True), Refusal.WAIT),
    Case("one namespace alone may fill all", LAB, held(LAB, 2 * HALF - 1, YOUNG), None, tuple(ONE)),
    Case("full of one namespace alone", LAB, held(LAB, 2 * HALF, YOUNG), Refusal.WAIT, tuple(ONE)),
    Case("full of one namespace alone, and old", LAB, held(LAB, 2 * HALF), LAB, tuple(ONE)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_connection_gives_way(case: Case) -> None:
    found = limits([*case.pods]).make_room(f"{case.newcomer}.0.199", case.strangers)
    assert (found.address[:4] if isinstance(found, Stranger) else found) == case.then


def test_oldest_connection_gives_way() -> None:
    strangers = held(UNKNOWN, HALF)
    strangers[7].since -= 1.0
    strangers[8] = replace(strangers[8], since=0.0, serving=True)
    assert limits(BOTH).make_room("19.2.0.199", strangers) is strangers[7]


@pytest.mark.parametrize(
    ("address", "pods", "most"),
    [
        ("10.1.0.1", ONE, MAX_PER_WORKER),
        ("19.2.0.1", ONE, MAX_PER_UNKNOWN_ADDRESS),
        ("10.1.0.1", [*ONE, *(replace(pod, uid=f"{n}", ip="10.1.0.1") for n, pod in enumerate(ONE[:2]))], 12),
    ],
    ids=["worker", "unknown", "workers that share the network of their node"],
)
def test_address_has_few_connections(address: str, pods: list[PodView], most: int) -> None:
    own = [Stranger(address, CLOCK.now, lambda: None) for _ in range(most)]
    assert limits(pods).make_room(address, own[1:]) is None
    assert limits(pods).make_room(address, own) is Refusal.CLOSE


@given(
    st.lists(st.tuples(st.sampled_from([LAB, MALLORY, UNKNOWN]), st.integers(0, 199)), max_size=400),
    st.sampled_from([MALLORY, UNKNOWN]),
)
def test_half_is_left_to_the_others(arrivals: list[tuple[str, int]], attacker: str) -> None:
    """However an attacker connects, the others find room at once."""
    made, strangers = limits(BOTH), list[Stranger]()
    for network, host in arrivals:
        address = f"{network if network == LAB else attacker}.0.{host}"
        found = made.make_room(address, strangers)
        if isinstance(found, Stranger):
            strangers.remove(found)
        if not isinstance(found, Refusal):
            strangers.append(Stranger(address, CLOCK.now, lambda: None))
        assert len(strangers) <= MAX_UNAUTHENTICATED_CONNECTIONS
        assert sum(each.address.startswith(attacker) for each in strangers) <= HALF


def test_handshakes_of_an_address_have_a_rate() -> None:
    made = limits(ONE)
    assert sum(made.is_within_rate("10.1.0.1") for _ in range(1000)) == WORKER_BURST
    assert made.is_within_rate("10.1.0.2")
    assert sum(made.is_within_rate("19.2.0.1") for _ in range(1000)) == UNKNOWN_BURST
    unknown = sum(made.is_within_rate(f"19.2.{n // 250}.{n % 250}") for n in range(10_000))
    assert unknown == ALL_UNKNOWN_BURST - UNKNOWN_BURST
    assert made.is_within_rate("10.1.0.3")


def test_idle_connection_gives_way_before_a_slow_body() -> None:
    slow = [
        Stranger(f"{LAB}.0.{n}", CLOCK.now - OLD, bool, receiving=True) for n in range(MAX_UNAUTHENTICATED_CONNECTIONS)
    ]
    made = limits(ONE)
    idle = Stranger(slow[-1].address, CLOCK.now - OLD / 2 - 0.1, bool)
    assert made.make_room(f"{LAB}.0.199", [*slow[:-1], idle]) is idle
    assert made.make_room(f"{LAB}.0.199", slow) is slow[0]
    handled = [replace(each, receiving=False, serving=True) for each in slow]
    assert made.make_room(f"{LAB}.0.199", handled) is Refusal.WAIT


@pytest.mark.parametrize("namespaces", [1, 200])
def test_handshakes_of_a_tenant_have_a_rate(namespaces: int) -> None:
    """All of 200 hostile workers, in one namespace or in one each, connect as often as they can."""
    hostile = [replace(pod, namespace=f"evil-{n % namespaces}") for n, pod in enumerate(workers(MALLORY, "", 200))]
    clock = Clock()
    index = WorkerIndex(lambda: [*hostile, *workers(LAB, "lab", 1)], clock)
    made, admitted = ConnectionLimits(index, clock), 0
    for second in range(60):
        clock.now += 1.0
        granted = sum(made.is_within_rate(pod.ip) for pod in hostile for _ in range(6))
        admitted += granted if second >= 50 else 0
        assert second % 5 or made.is_within_rate(f"{LAB}.0.0"), "the honest agent reports every five seconds"
    assert admitted <= 10 * 200, "at most one a second for each worker, once the bursts are used up"


@pytest.mark.parametrize(
    ("given_as", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fd00::0001", "fd00::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("", ""),
    ],
)
def test_address_is_written_as_that_of_a_pod(given_as: str, plain: str) -> None:
    assert plain_address(given_as) == plain
