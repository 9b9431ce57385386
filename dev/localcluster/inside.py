"""`python -m dev.localcluster.inside IMAGE COMMAND …`: runs a command on this machine with an image of ours for its root, and this repository in it.

So the tests of what runs in pods meet the very Python and torch that pods have, without a cluster. It must not know what it runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster import images
from dev.localcluster._images.buildah import open_storage
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.host import require_commands, require_root
from dev.localcluster.lock import exclusive
from dev.localcluster.paths import Paths, from_environment
from dev.localcluster.say import complain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

REPOSITORY: Final = "/repository"
TOOLS: Final = "/tools"
REQUIREMENTS: Final = "tests/library/requirements.txt"
"""What is at hand inside, whatever the image itself has."""
IMAGE_PYTHON: Final = "3.13"
COMPILED: Final = "PYTHONPYCACHEPREFIX=/tmp/compiled"
"""Wheels come without compiled modules: with some thousands of them more, to compile them in each process takes longer than all else."""
NAMESPACE_RIGHTS: Final = ("CAP_NET_ADMIN", "CAP_SYS_ADMIN")
IMPORTED: Final = ("trainer-image/library", "trainer-image/agent", ".")
"""Below the repository: what Python finds there, before what the image has of the same name."""


def run(image: str, command: Sequence[str], *, more: Sequence[Path] = (), namespaces: bool = False) -> int:
    """Run a command, with what `entered` takes; its exit code.

    Raises:
        LocalClusterError: the image cannot be built, a list cannot be installed, or a container not be made.
    """
    with entered(image, more=more, namespaces=namespaces) as inside:
        return subprocess.run(inside(command), check=False).returncode


@contextmanager
def entered(
    image: str, paths: Paths | None = None, *, more: Sequence[Path] = (), namespaces: bool = False
) -> Iterator[Callable[[Sequence[str]], list[str]]]:
    """Yield a function that wraps a command to run inside the image, in the network namespace of the caller; several may run at once.

    The repository is read-only. Each command gets a fresh copy of the image's files, which is deleted afterwards.

    Args:
        image: the name of one of ours.
        paths: where things are kept on this machine.
        more: further lists of locked packages. They go before what the image has of the same name, and behind the tests' own.
        namespaces: whether commands may leave the machine's network and mounts for their own.

    Raises:
        LocalClusterError: the image cannot be built, a list cannot be installed, or a container not be made.
    """
    require_root()
    paths = paths or from_environment()
    wanted = [images.REPOSITORY / REQUIREMENTS, *more]
    images.build(image, paths=paths)
    require_commands({"buildah": "buildah"})
    tools = {f"{TOOLS}-{number}": _tools(paths, each) for number, each in enumerate(wanted)}
    found = [*(f"{REPOSITORY}/{path}" for path in IMPORTED), *tools]
    rights = [word for name in (NAMESPACE_RIGHTS if namespaces else ()) for word in ("--cap-add", name)]
    volumes = [f"{images.REPOSITORY}:{REPOSITORY}:ro", *(f"{folder}:{place}:ro" for place, folder in tools.items())]
    # Opening the storage removes containers of killed commands, so only one process may do it at a time.
    with exclusive(paths.images / ".lock", patience=images.BUILD_WAIT_SECONDS, busy="another process uses the images"):
        storage = open_storage(paths.cache / "buildah")
        containers: list[str] = []

        def inside(command: Sequence[str]) -> list[str]:
            # One each: buildah does not bear that two commands in the same one end at the same time.
            made = subprocess.run(
                storage.command("from", "--pull-never", images.IMAGES[image].reference),
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if made.returncode != 0:
                raise LocalClusterError(f"there is no container of the {image} image: {made.stderr.strip()}")
            containers.append(made.stdout.strip())
            return storage.command(
                *("run", "--isolation", "chroot", "--network", "host", "--user", "0:0", "--workingdir", REPOSITORY),
                *rights,
                *(word for volume in volumes for word in ("--volume", volume)),
                *("--env", f"PYTHONPATH={':'.join(found)}"),
                *("--env", COMPILED, "--env", "PYTHONHASHSEED=0"),
                *(containers[-1], "--", *command),
            )

        try:
            yield inside
        finally:
            for container in containers:
                subprocess.run(storage.command("rm", container), capture_output=True, check=False)


def _tools(paths: Paths, wanted: Path) -> Path:
    """The folder with the packages of a lock, for the image's Python. Made once for each state of it."""
    # `uv run` says which it is; where the machine has none, `make` has put one there.
    uv = os.environ.get("UV") or shutil.which("uv") or str(paths.cache / "uv" / "bin" / "uv")
    folder = paths.cache / "inside" / sha256(f"{IMAGE_PYTHON}\n{wanted.read_text()}".encode()).hexdigest()[:16]
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
        # The locked list is whole but for what the image has.
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(partial)]
        try:
            made = subprocess.run(
                [*command, "--python-version", IMAGE_PYTHON, "--require-hashes", "--requirement", str(wanted)],
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise LocalClusterError(f"{uv} is missing; `make setup` puts it there") from error
        if made.returncode != 0:
            raise LocalClusterError(f"what {wanted.name} names cannot be installed: {made.stderr.strip()}")
        partial.rename(folder)
    return folder


def _list(text: str) -> Path:
    path = Path(text).absolute()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def main(arguments: list[str] | None = None) -> int:
    """The command line; its exit code is the command's."""
    parser = argparse.ArgumentParser(prog="python -m dev.localcluster.inside", description=__doc__)
    parser.add_argument(
        "--requirements",
        action="append",
        default=[],
        type=_list,
        metavar="FILE",
        help="a list of locked packages to be at hand as well; may be given several times",
    )
    parser.add_argument(
        "--namespaces", action="store_true", help="the command may have a network and mounts of its own"
    )
    parser.add_argument("image", choices=images.IMAGES)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="with its arguments")
    options = parser.parse_args(arguments)
    if not options.command:
        parser.error("there is no command")
    try:
        return run(options.image, options.command, more=options.requirements, namespaces=options.namespaces)
    except LocalClusterError as error:
        complain(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
