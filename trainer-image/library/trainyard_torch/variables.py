"""What launchers and the operator tell by variables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def whole(environ: Mapping[str, str], name: str, usual: int) -> int:
    """The number, from 0 on, that a variable holds; `usual` where it is not set, or to nothing.

    Raises:
        ValueError: it is none.
    """
    text = environ.get(name) or str(usual)
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name} must be a whole number, and is {text!r}")
    return int(text)
