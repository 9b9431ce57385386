"""Which environment variables are read while a library is imported. Run in the program's own interpreter, as a part of `warmed.py`."""

from __future__ import annotations

import gc
import os
from collections.abc import Container, Iterator


class Noted:
    """Which variables are read while it is used in a `with`, also of those that are not set. It sees Python's code alone."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.listed: set[str] = set()
        """Not by name, but each as it came when all were gone through: as a rule for those of some prefix, or to keep a copy."""

    def __enter__(self) -> Noted:  # noqa: PYI034 - Self needs Python 3.11
        noted, usual = self, type(os.environ)
        given: dict[int, str] = {}
        """The very texts that were handed out as names: nobody else has them."""

        class Noting(usual):  # type: ignore[misc, valid-type]
            def __iter__(self) -> Iterator[str]:
                for key in super().__iter__():
                    given[id(key)] = key
                    yield key

            def __getitem__(self, key: str) -> str:
                (noted.listed if given.get(id(key)) is key else noted.asked).add(key)
                found: str = super().__getitem__(key)
                return found

        self._usual = usual
        # The object stays: libraries keep it.
        os.environ.__class__ = Noting
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.__class__ = self._usual

    def read(self, own: Container[str], prefixes: tuple[str, ...]) -> list[str]:
        """Those of the names or prefixes in question. What was only listed counts where a copy of it was kept."""
        asked, listed = (
            {name for name in names if name in own or name.startswith(prefixes)} for names in (self.asked, self.listed)
        )
        return sorted(asked | kept({name: os.environ[name] for name in listed if name in os.environ}))


def kept(variables: dict[str, str]) -> set[str]:
    """Which of these some dictionary holds too."""
    found: set[str] = set()
    if variables:
        # A dictionary of texts alone is not among the objects themselves.
        for each in (inner for outer in gc.get_objects() for inner in gc.get_referents(outer) if type(inner) is dict):
            if each is not variables:
                found.update(
                    name for name, value in variables.items() if type(of := each.get(name)) is str and of == value
                )
    return found
