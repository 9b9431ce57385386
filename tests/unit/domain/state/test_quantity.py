"""Kubernetes quantities as numbers."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kubernetes.utils.quantity import parse_quantity

from trainyard.domain.state.quantity import quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", Decimal(2)),
        (2, Decimal(2)),
        (0.5, Decimal("0.5")),
        ("500m", Decimal("0.5")),
        ("1k", Decimal(1000)),
        ("1e3", Decimal(1000)),
        ("2Ki", Decimal(2048)),
        ("1M", Decimal(10**6)),
        ("", None),
        (None, None),
        ("two", None),
        ("NaN", None),
        ("Infinity", None),
    ],
)
def test_quantity(text: Any, number: Decimal | None) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["1e5000", "1e999999", "1e99999999", "9" * 20])
def test_quantities_beyond_kubernetes_limits_are_none(text: str) -> None:
    assert quantity(text) is None


@given(
    number=st.decimals(min_value=-1000, max_value=1000, allow_nan=False, places=3),
    suffix=st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi", "e3", "E-2"]),
)
def test_agrees_with_the_kubernetes_client(number: Decimal, suffix: str) -> None:
    text = f"{number:f}{suffix}"
    assert quantity(text) == parse_quantity(text)  # type: ignore[no-untyped-call]  # the client has no types
