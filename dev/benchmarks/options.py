"""What the benchmarks' command lines have in common. Pure."""

import argparse
from collections.abc import Collection, Sequence


def turns(systems: Sequence[str], repeat: int) -> list[str]:
    """Who is measured when: everybody begins once, so that none is always the first or always after the same one."""
    first = repeat % len(systems)
    return [*systems[first:], *systems[:first]]


def some_of(known: Collection[str], text: str) -> list[str]:
    """The names in a list with commas.

    Raises:
        argparse.ArgumentTypeError: one is not known.
    """
    chosen = text.split(",")
    if strange := [name for name in chosen if name not in known]:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(strange)}; there are {', '.join(known)}")
    return chosen
