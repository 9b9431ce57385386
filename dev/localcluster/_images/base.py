"""The base of both images: a minimal Debian stable, made from the host's own mirrors. No registry is asked."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster._images.buildah import run_logged
from dev.localcluster._images.digest import content_hash
from dev.localcluster._images.settings import host_debian_sources
from dev.localcluster.command import run
from dev.localcluster.say import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dev.localcluster._images.buildah import Storage

SUITE: Final = "trixie"
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ROOTFS: Final = "rootfs.tar"
# What slim images leave out too; and no waiting for the disk while packages are unpacked.
DPKG_OPTIONS: Final = (
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/man/*",
    "force-unsafe-io",
)
OPTIONS: Final = (
    *("--variant=apt", "--include=ca-certificates,python3", "--format=tar", "--components=main"),
    *(f"--dpkgopt={option}" for option in DPKG_OPTIONS),
    # mmdebstrap leaves the host's own file behind; the container runtime provides another.
    '--customize-hook=rm -f "$1/etc/hostname" "$1/etc/resolv.conf"',
)
DOCKERFILE: Final = f'FROM scratch\nADD {ROOTFS} /\nCMD ["/bin/bash"]\n'
REFERENCE: Final = f"localhost/trainyard/base:{SUITE}-{content_hash(Path(), (), (SUITE, *OPTIONS, DOCKERFILE))}"


def debootstrap(target: Path, sources: Sequence[str]) -> list[str]:
    """The command that makes the root file system; without `sources` it takes mmdebstrap's own default mirror."""
    return ["mmdebstrap", *OPTIONS, SUITE, str(target), *sources]


def ensure(storage: Storage, scratch: Path, log: Path) -> str:
    """Make the base where it is not in the storage yet; its reference."""
    if storage.identity(REFERENCE):
        return REFERENCE
    _require_keyring()
    storage.clear()  # its images are built on another base
    say(f"making the images' base, a minimal Debian {SUITE}: about 1 min")
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        dockerfile = folder / "Dockerfile"
        dockerfile.write_text(DOCKERFILE)
        bootstrap = debootstrap(folder / ROOTFS, host_debian_sources(SUITE))
        run_logged(bootstrap, log, doing="making the Debian base", environ=os.environ | {"TMPDIR": name})
        build = storage.build(context=folder, dockerfile=dockerfile, reference=REFERENCE, arguments={}, secrets={})
        run_logged(build, log, doing="importing the Debian base")
    return REFERENCE


def _require_keyring() -> None:
    """Debian's keys, which no other distribution has by default."""
    if KEYRING.exists():
        return
    package = KEYRING.stem
    say(f"installing the Debian package {package} (once; a few seconds)")
    run("apt-get", "install", "--yes", "--no-install-recommends", package, doing=f"installing {package}")
