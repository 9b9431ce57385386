"""Builds the images of the local cluster from the Dockerfiles that users build, without Docker.

`python -m dev.localcluster.images build [NAME …]` leaves one OCI archive for each image in the cache folder.
The name is the hash of all that went into it, so that nothing is built twice. It must not know what a cluster is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster._images import archive, base
from dev.localcluster._images.buildah import open_storage, run_logged
from dev.localcluster._images.digest import content_hash
from dev.localcluster._images.settings import ca_bundle, host_apt_conf, pip_conf, pip_conf_files
from dev.localcluster.disk import require_free
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.host import require_commands, require_root, widen_path
from dev.localcluster.lock import exclusive
from dev.localcluster.paths import Paths, from_environment
from dev.localcluster.say import complain, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dev.localcluster._images.buildah import Storage

REPOSITORY: Final = Path(__file__).parents[2]
BUILD_WAIT_SECONDS: Final = 3600.0
SCRATCH: Final = ".building-"
# command -> Debian (and Ubuntu) package, asked for only when something is to be built
BUILD_COMMANDS: Final = {"buildah": "buildah", "gpg": "gpg", "mmdebstrap": "mmdebstrap"}


@dataclass(frozen=True, slots=True)
class Image:
    """An image of ours: its Dockerfile and context below the repository, and every path that the Dockerfile copies."""

    name: str
    context: str
    inputs: tuple[str, ...]
    takes: str
    gigabytes: float
    stands_on: str | None = None
    """The image of ours that is its base; such a one is built only where it is asked for. None: Debian."""
    variant: str | None = None
    """What its Dockerfile's VARIANT is set to; such a one is built only where it is asked for. None: the default."""

    @property
    def reference(self) -> str:
        """The name under which pods ask for it."""
        return f"localhost/trainyard/{self.name}:dev"

    @property
    def dockerfile(self) -> Path:
        """The Dockerfile, for users and for us the same."""
        return REPOSITORY / self.context / "Dockerfile"

    @property
    def below(self) -> str:
        """What its Dockerfile's BASE_IMAGE is set to."""
        return IMAGES[self.stands_on].reference if self.stands_on else base.REFERENCE

    @property
    def arguments(self) -> dict[str, str]:
        """The build arguments of its Dockerfile."""
        return {"BASE_IMAGE": self.below, **({"VARIANT": self.variant} if self.variant else {})}

    @property
    def contents(self) -> str:
        """The hash of all that goes into it."""
        below = IMAGES[self.stands_on].contents if self.stands_on else base.REFERENCE
        return content_hash(REPOSITORY, self.inputs, (below, *([self.variant] if self.variant else [])))

    def archive(self, folder: Path) -> Path:
        """Where the archive of the present contents lies, once built."""
        return folder / f"{self.name}-{self.contents}.tar"


SOURCES_OF_AGENT: Final = ("trainer-image/agent", "trainer-image/start-agent.sh", "trainer-image/probe-worker.sh")
IMAGES: Final = {
    image.name: image
    for image in (
        Image(
            "operator",
            ".",
            (
                "Dockerfile",
                ".dockerignore",
                "LICENSE",
                "README.md",
                "build-requirements.txt",
                "operator",
                "pyproject.toml",
                "uv.lock",
                *SOURCES_OF_AGENT,
            ),
            "about 1 min the first time, 15 s after a change of the source",
            2,
        ),
        Image("trainer", "trainer-image", ("trainer-image",), "about 2 min", 5),
        Image("cuda", "trainer-image", ("trainer-image",), "about 15 min, 5 GB of downloads", 30, variant="cuda"),
        Image(
            "frameworks",
            "examples/frameworks",
            (
                "examples/frameworks/Dockerfile",
                "examples/frameworks/build-requirements.txt",
                "examples/frameworks/requirements.txt",
            ),
            "about 2 min",
            6,
            stands_on="trainer",
        ),
        Image(
            "frameworks-horovod",
            "examples/frameworks-horovod",
            tuple(
                f"examples/frameworks-horovod/{name}"
                for name in ("Dockerfile", "build-requirements.txt", "patch.sh", "requirements.txt")
            ),
            "about 10 min, 500 MB of downloads",
            8,
            stands_on="trainer",
        ),
        Image(
            "frameworks-jax",
            "examples/frameworks-jax",
            ("examples/frameworks-jax/Dockerfile", "examples/frameworks-jax/requirements.txt"),
            "about 2 min, 130 MB of downloads",
            6,
            stands_on="trainer",
        ),
        Image(
            "frameworks-tensorflow",
            "examples/frameworks-tensorflow",
            ("examples/frameworks-tensorflow/Dockerfile", "examples/frameworks-tensorflow/requirements.txt"),
            "about 4 min, 300 MB of downloads",
            10,
            stands_on="trainer",
        ),
        Image(
            "frameworks-ray",
            "examples/frameworks-ray",
            ("examples/frameworks-ray/Dockerfile", "examples/frameworks-ray/requirements.txt"),
            "about 2 min, 150 MB of downloads",
            6,
            stands_on="trainer",
        ),
        Image(
            "frameworks-mxnet",
            "examples/frameworks-mxnet",
            (
                "examples/frameworks-mxnet/Dockerfile",
                "examples/frameworks-mxnet/old_names.py",
                "examples/frameworks-mxnet/requirements.txt",
            ),
            "about 2 min, 50 MB of downloads",
            5,
            stands_on="trainer",
        ),
        Image(
            "frameworks-paddle",
            "examples/frameworks-paddle",
            ("examples/frameworks-paddle/Dockerfile", "examples/frameworks-paddle/requirements.txt"),
            "about 3 min, 210 MB of downloads",
            7,
            stands_on="trainer",
        ),
        Image(
            "frameworks-flower",
            "examples/frameworks-flower",
            ("examples/frameworks-flower/Dockerfile", "examples/frameworks-flower/requirements.txt"),
            "about 2 min, 40 MB of downloads",
            6,
            stands_on="trainer",
        ),
        Image(
            "peers-ray",
            "dev/benchmarks/frameworks/images/ray",
            (
                "dev/benchmarks/frameworks/images/ray/Dockerfile",
                "dev/benchmarks/frameworks/images/ray/requirements.txt",
            ),
            "about 3 min, 200 MB of downloads",
            6,
            stands_on="trainer",
        ),
        Image(
            "peers-mpi",
            "dev/benchmarks/frameworks/images/mpi",
            tuple(f"dev/benchmarks/frameworks/images/mpi/{name}" for name in ("Dockerfile", "ssh.conf", "sshd.conf")),
            "about 1 min",
            6,
            stands_on="frameworks",
        ),
    )
}
USUAL: Final = tuple(image.name for image in IMAGES.values() if not (image.stands_on or image.variant))
"""What is built where no names are given."""


def build(*names: str, paths: Paths | None = None) -> list[Path]:
    """The archives of the images of these names (if none is given, of those that stand on Debian), built where their contents have changed.

    Raises:
        LocalClusterError: a name is unknown, a tool or disk space is missing, or a build failed.
    """
    paths = paths or from_environment()
    if unknown := [name for name in names if name not in IMAGES]:
        raise LocalClusterError(f"there is no image {unknown[0]}; there are {', '.join(IMAGES)}")
    images = [IMAGES[name] for name in names or USUAL]
    if all(image.archive(paths.images).exists() for image in images):
        # Do not wait for other users: a command may run in an image for minutes (`inside`).
        return [_ensure(image, paths) for image in images]
    lock = paths.images / ".lock"
    busy = f"another process has been building images for an hour (lock {lock}): end it and try again"
    with exclusive(lock, patience=BUILD_WAIT_SECONDS, busy=busy):
        return [_ensure(image, paths) for image in images]


def _ensure(image: Image, paths: Paths) -> Path:
    target = image.archive(paths.images)
    if not target.exists():
        require_free(paths.images, gigabytes=image.gigabytes, purpose=f"building the {image.name} image")
        if image.stands_on:
            _have(IMAGES[image.stands_on], paths)
        _build(image, target, paths)
    archive.remove_others(target, image.name)
    return target


def _have(image: Image, paths: Paths) -> None:
    """The image itself in our storage, for another to stand on: its archive may be there without it."""
    target = _ensure(image, paths)
    _require_tools()
    if not open_storage(paths.cache / "buildah").identity(image.reference):
        _build(image, target, paths)


def _require_tools() -> None:
    require_root()
    widen_path()
    require_commands(BUILD_COMMANDS)


def _build(image: Image, target: Path, paths: Paths) -> None:
    _require_tools()
    folder = paths.cache / "buildah"
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{SCRATCH}*"):  # of a build that was killed: the lock says that none runs
        shutil.rmtree(leftover, ignore_errors=True)
    storage = open_storage(folder)
    log = folder / f"{image.name}.log"
    log.write_text("")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder, prefix=SCRATCH) as name:
        scratch = Path(name)
        if not image.stands_on:
            base.ensure(storage, scratch, log)
        say(f"building {image.reference}: {image.takes} (log {log})")
        replaced = storage.identity(image.reference)
        command = storage.build(
            context=REPOSITORY / image.context,
            dockerfile=image.dockerfile,
            reference=image.reference,
            arguments=image.arguments,
            secrets=_secrets(scratch, os.environ),
        )
        run_logged(command, log, doing=f"building {image.reference}")
        if replaced and replaced != storage.identity(image.reference):
            storage.forget(replaced)
        _export(image, target, storage, scratch, log)
    say(f"built {image.reference}: {target.stat().st_size / 1e6:.0f} MB in {time.monotonic() - began:.0f} s")


def _export(image: Image, target: Path, storage: Storage, scratch: Path, log: Path) -> None:
    exported = scratch / "image"
    run_logged(storage.export(image.reference, exported), log, doing=f"writing {image.reference}")
    archive.pack(exported, image.reference, target)


def _secrets(scratch: Path, environ: Mapping[str, str]) -> dict[str, Path]:
    """The host's settings as files that only the build sees."""
    bundle = ca_bundle(environ)
    secrets = {"ca-bundle": bundle} if bundle else {}
    texts = {
        "pip.conf": pip_conf(environ, pip_conf_files(environ), with_ca_bundle=bundle is not None),
        "apt.conf": host_apt_conf(with_ca_bundle=bundle is not None),
    }
    for name, text in texts.items():
        if text:
            secrets[name] = scratch / name
            secrets[name].write_text(text)
            secrets[name].chmod(0o600)  # it may hold a password
    return secrets


def main(arguments: list[str] | None = None) -> int:
    """The command line; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m dev.localcluster.images", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("build", help="build what has changed, and print where the archives are")
    command.add_argument(
        "names", nargs="*", metavar="|".join(IMAGES), help=f"the images, by default {' and '.join(USUAL)}"
    )
    names = parser.parse_args(arguments).names
    try:
        for path in build(*names):
            say(str(path))
    except LocalClusterError as error:
        complain(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
