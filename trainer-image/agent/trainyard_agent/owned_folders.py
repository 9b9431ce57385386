"""Make, open and empty folders where other users may write too, without following a link that one of them has put there.

Each call looks a path up again, and another user may have changed it. So each folder is opened by its name in the folder above, and then used by its descriptor.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

OPEN_TO_ALL = 0o1777
"""Every user may write, and remove only own files."""


class ForeignError(OSError):
    """A folder or file belongs to another user."""


@contextmanager
def opened(base: Path, names: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """Yield the descriptor of the folder at `names` below `base`. Links in `base` itself are followed: the user has named it.

    Args:
        base: a folder; it is made too.
        names: the names of folders, each in the one before.
        make: whether folders that are missing are made.

    Raises:
        OSError: one of them is missing, no folder, a link, or belongs to another user (`ForeignError`).
    """
    if make:
        base.mkdir(parents=True, exist_ok=True)
    folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            inner = _inner(base, folder, name, make=make)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def empty(folder: int, name: str, prefix: str) -> None:
    """Remove a folder, and its files that have this prefix. One with anything else stays. Raises OSError."""
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        for each in os.listdir(inner):  # noqa: PTH208 - a descriptor has no Path
            if each.startswith(prefix):
                with suppress(OSError):
                    os.unlink(each, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def write_own(file: Path, content: bytes, mode: int) -> None:
    """Write a new file in place of what is there. A link is not followed. Raises OSError."""
    with suppress(FileNotFoundError):
        file.unlink()
    made = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.write(made, content)
    finally:
        os.close(made)


def _inner(base: Path, above: int, name: str, *, make: bool) -> int:
    """Open a folder in another. One that is made is ours, and open to all."""
    made = False
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
            made = True
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        owner = os.fstat(folder).st_uid
        if not made and owner != os.geteuid() and owner != _owner_in(base):
            raise ForeignError(f"{name} belongs to user {owner}")  # noqa: TRY301 - the descriptor is closed below
        if make and stat.S_IMODE(os.fstat(folder).st_mode) != OPEN_TO_ALL:
            # A program may run as another user than the agent, and torch aborts a rank that cannot make its pipe.
            with suppress(OSError):
                os.fchmod(folder, OPEN_TO_ALL)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _owner_in(base: Path) -> int:
    """Return the user to whom new files in a folder belong: a file server may map root to another user."""
    with tempfile.TemporaryDirectory(prefix="trainyard-owner-", dir=base) as made:
        return Path(made).stat().st_uid
