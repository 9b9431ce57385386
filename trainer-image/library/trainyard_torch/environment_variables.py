"""Read environment variables that launchers and the operator set. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def whole_number(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return the non-negative integer of a variable, or `usual` if it is not set or empty.

    Raises:
        ValueError: the value is not a non-negative integer.
    """
    text = environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} must be a non-negative integer, not {text!r}")
    return int(text)
