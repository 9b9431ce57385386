"""Options of a command line of which a later one replaces an earlier one. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def option_value(words: Sequence[str], name: str) -> str:
    """Return the value that counts of an option, as `NAME VALUE` or `NAME=VALUE`: the last one; empty where there is none."""
    found = ""
    for word, following in zip(words, [*words[1:], ""]):
        if word == name:
            found = following
        elif word.startswith(f"{name}="):
            found = word[len(name) + 1 :]
    return found
