"""Sum the resources that pods request, by the rule of the Kubernetes scheduler. Pure."""

from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from trainyard.domain.state.quantity import quantity

Amounts = Mapping[str, Decimal]
MILLI = Decimal("0.001")


def pod_requests(pod: Mapping[str, Any]) -> Amounts:
    """Return what the scheduler reserves on a node for a pod with this `spec`.

    Sidecars run beside all later containers; other init containers run one after the other, before the main ones. Requests of the
    whole pod replace the sums of its containers.
    """
    sidecars: Amounts = {}
    starting: Amounts = {}
    for container in pod.get("initContainers") or ():
        asked = _requested(container)
        if container.get("restartPolicy") == "Always":
            sidecars = _sum([sidecars, asked])
            starting = _largest(starting, sidecars)
        else:
            starting = _largest(starting, _sum([sidecars, asked]))
    running = _sum([sidecars, *(_requested(container) for container in pod["containers"])])
    whole = _requested(pod)
    return _sum([{**_largest(starting, running), **whole}, _amounts(pod.get("overhead"))])


def total(requests: Iterable[tuple[int, Amounts]]) -> dict[str, str]:
    """Return the sum of these requests, each so many times, as Kubernetes quantities by the name of the resource."""
    sums = _sum([{name: count * amount for name, amount in amounts.items()} for count, amounts in requests])
    return {name: _text(amount) for name, amount in sorted(sums.items())}


def _requested(requester: Mapping[str, Any]) -> Amounts:
    """Return the requests of a container or a pod: limits stand in for requests that are left out."""
    resources: Mapping[str, Any] = requester.get("resources") or {}
    return {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))}


def _amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    read = {name: quantity(value) for name, value in (quantities or {}).items()}
    return {name: amount for name, amount in read.items() if amount is not None}


def _sum(parts: Iterable[Amounts]) -> dict[str, Decimal]:
    sums: dict[str, Decimal] = {}
    for part in parts:
        for name, amount in part.items():
            sums[name] = sums.get(name, Decimal(0)) + amount
    return sums


def _largest(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    return {name: max(one.get(name, Decimal(0)), other.get(name, Decimal(0))) for name in {**one, **other}}


def _text(amount: Decimal) -> str:
    """Return the quantity: whole, or in thousandths. Kubernetes rounds smaller parts up, too."""
    if amount == amount.to_integral_value():
        return f"{amount:f}".partition(".")[0]
    return f"{(amount / MILLI).to_integral_value(ROUND_CEILING):f}m"
