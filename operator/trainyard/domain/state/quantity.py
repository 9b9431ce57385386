"""Parse Kubernetes quantities ("500m", "2", "1k", "16Gi"). Pure."""

from decimal import Decimal

DECIMAL = {
    "n": "1e-9",
    "u": "1e-6",
    "m": "1e-3",
    "k": "1e3",
    "M": "1e6",
    "G": "1e9",
    "T": "1e12",
    "P": "1e15",
    "E": "1e18",
}
LARGEST_EXPONENT = 18
FACTORS = {suffix: Decimal(factor) for suffix, factor in DECIMAL.items()} | {
    f"{letter}i": Decimal(2) ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)
}


def quantity(value: str | float | None) -> Decimal | None:
    """Return the number that `value` represents; None where it is no quantity: the API server rejects that pod."""
    text = str(value).strip()
    suffix = next((s for s in FACTORS if text.endswith(s)), "")
    try:
        amount = Decimal(text.removesuffix(suffix)) * FACTORS.get(suffix, Decimal(1))
    except ArithmeticError:
        return None
    # Kubernetes' own quantities end at 2^63 - 1, and a number of a million digits would take half a minute to write out.
    return amount if amount.is_finite() and amount.adjusted() <= LARGEST_EXPONENT else None
