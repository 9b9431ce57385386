"""Options that the command lines of the benchmarks share."""

import argparse
from collections.abc import Collection, Sequence


def turns(systems: Sequence[str], repeat: int) -> list[str]:
    """Return the order of the systems in this repetition. It rotates, so that each system is first once."""
    first = repeat % len(systems)
    return [*systems[first:], *systems[:first]]


def some_of(known: Collection[str], text: str) -> list[str]:
    """Return the names in a comma-separated list.

    Raises:
        argparse.ArgumentTypeError: a name is unknown.
    """
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; available: {', '.join(known)}")
    return chosen
