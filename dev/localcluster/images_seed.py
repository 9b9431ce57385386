"""The seed: an image store that is filled once, and of which every node's store is a hard-linked clone.

Importing a training image takes 15 s and its full size on disk for each node; a clone takes 0.3 s and a few MB. It is
safe because blobs and committed layers are never written in place; the databases, which are, are copied.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster import node, pause_image, processes
from dev.localcluster.command import run
from dev.localcluster.disk import require_free
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.node_config import CONTAINERD_SOCKET, CONTAINERD_STATE
from dev.localcluster.say import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dev.localcluster.paths import Paths

RECORD: Final = "archives.json"
DISABLED_PLUGINS: Final = tuple(f"io.containerd.{name}" for name in ("cri.v1.images", "cri.v1.runtime", "grpc.v1.cri"))


@dataclass(frozen=True, slots=True)
class Archive:
    """One version of one file."""

    path: str
    size: int
    modified: int  # nanoseconds


def archive(path: Path) -> Archive:
    """The file as it is now.

    Raises:
        LocalClusterError: there is none.
    """
    try:
        found = path.resolve().stat()
    except FileNotFoundError as error:
        raise LocalClusterError(f"there is no image archive {path}") from error
    return Archive(str(path.resolve()), found.st_size, found.st_mtime_ns)


def recorded(folder: Path) -> list[Archive]:
    """What a store was made of; nothing for one that was not finished."""
    try:
        return [Archive(**entry) for entry in json.loads((folder / RECORD).read_text())]
    except (FileNotFoundError, ValueError, TypeError):
        return []


def refresh(paths: Paths, tools: dict[str, Path], more: Sequence[Archive] = ()) -> None:
    """Brings the seed up to date with the pause image, the archives in the images folder, and these more.

    Raises:
        LocalClusterError: an archive is not one, or there is no room.
    """
    pause_image.ensure(paths)
    held = recorded(paths.seed)
    if not held:
        shutil.rmtree(paths.seed, ignore_errors=True)
    # Oldest first: where two archives bear the same image name, the newer one shall have it in the end.
    wanted = [*sorted(map(archive, paths.images.glob("*.tar")), key=lambda entry: entry.modified), *more]
    new = [entry for entry in dict.fromkeys(wanted) if entry not in held]
    if not new:
        return
    size = sum(entry.size for entry in new) / 1e9
    require_free(paths.seed, gigabytes=round(3 * size + 0.5, 1), purpose="unpacking the images")
    names = ", ".join(Path(entry.path).name for entry in new)
    say(f"unpacking images: {names} (about {max(1, round(15 * size))} s)")
    _import_into_seed(paths, tools, new)
    record(paths.seed, held, new)


def clone(paths: Paths, number: int) -> None:
    """Gives a node that has no store yet one of its own."""
    store = paths.node(number) / "containerd"
    shutil.rmtree(store, ignore_errors=True)
    store.parent.mkdir(parents=True, exist_ok=True)
    source = paths.seed / "containerd"
    environment = processes.marked_environment(paths)
    run("cp", "--archive", "--link", source, store, doing=f"cloning images for node {number}", env=environment)
    # Each plugin has its database in its own folder. Below it are the files of images, with databases of their own.
    for database in source.glob("*/*.db"):
        copy = store / database.relative_to(source)
        copy.unlink()
        shutil.copyfile(database, copy)
    shutil.copyfile(paths.seed / RECORD, paths.node(number) / RECORD)


def load(path: Path, paths: Paths, tools: dict[str, Path], running: Sequence[int]) -> None:
    """Puts an archive into the seed and into all running nodes; a stopped one gets it when it starts.

    Raises:
        LocalClusterError: it is not an OCI archive, or a node cannot take it.
    """
    refresh(paths, tools, [archive(path)])
    synchronise(paths, tools, running)


def synchronise(paths: Paths, tools: dict[str, Path], running: Sequence[int]) -> None:
    """Imports into running nodes what the seed has and they have not.

    Raises:
        LocalClusterError: a node cannot take it.
    """

    def catch_up(number: int) -> None:
        held = recorded(paths.node(number))
        new = [entry for entry in recorded(paths.seed) if entry not in held]
        # A file that was replaced or removed since is in the seed alone, and a later version of it follows in the list.
        new = [entry for entry in new if Path(entry.path).exists() and archive(Path(entry.path)) == entry]
        for entry in new:
            with Path(entry.path).open("rb") as file:
                run(*node.enter(number, paths), *_ctr(tools), "-", doing=f"loading {entry.path}", stdin=file)
        record(paths.node(number), held, new)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(catch_up, running))


def _ctr(tools: dict[str, Path]) -> list[str]:
    return [str(tools["ctr"]), f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io", "images", "import", "--local"]


def _import_into_seed(paths: Paths, tools: dict[str, Path], new: Sequence[Archive]) -> None:
    paths.seed.mkdir(parents=True, exist_ok=True)
    configuration = paths.seed / "containerd.toml"
    configuration.write_text(
        f"version = 3\nroot = {json.dumps(str(paths.seed / 'containerd'))}\n"
        f'state = "{CONTAINERD_STATE}"\ndisabled_plugins = {json.dumps(DISABLED_PLUGINS)}\n'
        f'[grpc]\n  address = "{CONTAINERD_SOCKET}"\n'
        f"[plugins.'io.containerd.internal.v1.opt']\n  path = {json.dumps(str(paths.seed / 'opt'))}\n"
    )
    run(
        *("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc"),
        *(sys.executable, "-m", "dev.localcluster.seed_init", tools["containerd"], tools["ctr"], configuration),
        *(entry.path for entry in new),
        doing="unpacking images",
        env={**processes.marked_environment(paths), "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def record(folder: Path, held: Sequence[Archive], new: Sequence[Archive]) -> None:
    """Only the newest version of each file counts."""
    latest = {entry.path: entry for entry in (*held, *new)}
    scratch = folder / f"{RECORD}.new"
    scratch.write_text(json.dumps([asdict(entry) for entry in latest.values()], indent=1))
    scratch.rename(folder / RECORD)
