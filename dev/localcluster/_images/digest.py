"""The content hash by which a built image is recognised. It reads files and must not write any."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

IGNORED = frozenset({"__pycache__"})


def content_hash(root: Path, inputs: Iterable[str], recipe: Sequence[str] = ()) -> str:
    """Twelve hex digits over `recipe` and the names, modes and contents of the files under `inputs`, paths below `root`.

    Each part goes in with its length before it, so that no two different trees can give the same stream.

    Raises:
        FileNotFoundError: one of `inputs` does not exist.
    """
    digest = hashlib.sha256()
    for part in recipe:
        _add(digest, part.encode())
    for path in sorted({file for name in inputs for file in _files(root / name)}):
        executable = bool(path.stat().st_mode & 0o111)
        _add(digest, f"{path.relative_to(root).as_posix()} {executable:d}".encode())
        _add(digest, path.read_bytes())
    return digest.hexdigest()[:12]


def _add(digest: hashlib._Hash, part: bytes) -> None:
    digest.update(len(part).to_bytes(8, "big"))
    digest.update(part)


def _files(path: Path) -> Iterator[Path]:
    if not path.exists():
        raise FileNotFoundError(path)
    if path.is_file():
        yield path
        return
    for child in path.iterdir():
        if child.name not in IGNORED:
            yield from _files(child)
