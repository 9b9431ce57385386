"""Record which environment variables are read while a library is imported. Runs in the program's own interpreter, as a part of
`forkserver_child.py`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Container, Iterator


class EnvironmentReads:
    """Records in a `with` which variables are read, also those that are not set. It sees reads by Python code only."""

    def __init__(self) -> None:
        self.by_name: set[str] = set()
        self.by_iteration: set[str] = set()
        """Read while all variables were iterated over: usually to look for a prefix, or to keep a copy."""

    def __enter__(self) -> EnvironmentReads:  # noqa: PYI034 - Self needs Python 3.11
        recorder, original = self, type(os.environ)
        iterated: dict[int, str] = {}
        """The very strings that the iteration has returned, by their id."""

        class Recording(original):  # type: ignore[misc, valid-type]
            def __iter__(self) -> Iterator[str]:
                for key in super().__iter__():
                    iterated[id(key)] = key
                    yield key

            def __getitem__(self, key: str) -> str:
                # A library may ask for what can be no name, as TensorFlow's do for one of bytes, and expect the error.
                if isinstance(key, str):
                    (recorder.by_iteration if iterated.get(id(key)) is key else recorder.by_name).add(key)
                found: str = super().__getitem__(key)
                return found

        self._original = original
        # The object stays, since libraries keep it.
        os.environ.__class__ = Recording
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.__class__ = self._original

    def found(self, names: Container[str], prefixes: tuple[str, ...]) -> list[str]:
        """Return the variables with one of these names or prefixes that were read. Those only iterated over count where a copy exists."""
        by_name, by_iteration = (
            {name for name in read if name in names or name.startswith(prefixes)}
            for read in (self.by_name, self.by_iteration)
        )
        return sorted(by_name | copied({name: os.environ[name] for name in by_iteration if name in os.environ}))


def copied(variables: dict[str, str]) -> set[str]:
    """Return those variables that some other dictionary holds too."""
    found: set[str] = set()
    if variables:
        # The collector does not track a dictionary that holds only strings, so look at what the tracked objects refer to.
        for each in (inner for outer in gc.get_objects() for inner in gc.get_referents(outer) if type(inner) is dict):
            if each is not variables:
                found.update(
                    name for name, value in variables.items() if type(of := each.get(name)) is str and of == value
                )
    return found
