"""Read environment variables that launchers and the operator set. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def whole_number(environ: Mapping[str, str], name: str, default: int) -> int:
    """The number, from 0 on, that a variable holds; `usual` where it is not set, or to nothing.

    Raises:
        ValueError: the value is not a non-negative integer.
    """
    text = environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} must be a non-negative integer, not {text!r}")
    return int(text)
