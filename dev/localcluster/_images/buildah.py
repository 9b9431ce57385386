"""buildah: the command lines, and the one storage of ours under the cache folder. It must not decide what is built."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dev.localcluster.errors import LocalClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

RUN_ROOT: Final = "/run/trainyard-buildah"
TAIL_LINES: Final = 20


@dataclass(frozen=True, slots=True)
class Storage:
    """buildah's images and layers, apart from those that the host may have of its own."""

    root: Path
    driver: str

    def command(self, *arguments: str) -> list[str]:
        """One buildah command on this storage."""
        # The run root holds the mount counts, so it lies where a reboot clears it.
        run_root = f"{RUN_ROOT}{str(self.root).replace('/', '-')}"
        return ["buildah", "--root", str(self.root), "--runroot", run_root, "--storage-driver", self.driver, *arguments]

    def build(  # each is one option of the command line
        self,
        *,
        context: Path,
        dockerfile: Path,
        reference: str,
        arguments: Mapping[str, str],
        secrets: Mapping[str, Path],
    ) -> list[str]:
        """Build a Dockerfile; chroot isolation and the host's network need neither a runtime nor a namespace."""
        return self.command(
            *("bud", "--isolation", "chroot", "--network", "host", "--layers"),
            *(word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")),
            *(word for name, path in secrets.items() for word in ("--secret", f"id={name},src={path}")),
            *("--tag", reference, "--file", str(dockerfile), str(context)),
        )

    def export(self, reference: str, folder: Path) -> list[str]:
        """Write an image's manifest and blobs, as they are, into a folder."""
        return self.command("push", "--disable-compression", "--format", "oci", reference, f"dir:{folder}")

    def identity(self, reference: str) -> str:
        """The ID of the image that has this name, empty if none has."""
        command = self.command("inspect", "--type", "image", "--format", "{{.FromImageID}}", reference)
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def forget(self, identity: str) -> None:
        """Give back the room of an image that a newer one has replaced; layers that the newer one shares stay."""
        # At worst, a container still uses it: then it stays, without harm.
        subprocess.run(self.command("rmi", identity), capture_output=True, check=False)

    def clear(self) -> None:
        """Give back the room of all images."""
        subprocess.run(self.command("rmi", "--all", "--force"), capture_output=True, check=False)


def open_storage(folder: Path) -> Storage:
    """The storage under `folder`, for one build at a time.

    It uses overlay mounts where the kernel and the file system allow it, else copies.

    Raises:
        LocalClusterError: it works with neither.
    """
    complaint = ""
    for driver in ("overlay", "vfs"):
        storage = Storage(folder / driver, driver)
        answer = subprocess.run(storage.command("info"), capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            # What builds that failed or were killed have left; no other build runs on this storage.
            subprocess.run(storage.command("rm", "--all"), capture_output=True, check=False)
            return storage
        complaint = answer.stderr.strip()
    raise LocalClusterError(f"buildah cannot keep images under {folder}: {complaint}")


def run_logged(command: Sequence[str], log: Path, *, doing: str, environ: Mapping[str, str] = os.environ) -> None:
    """Run a command, its words appended to `log`.

    Raises:
        LocalClusterError: it failed or is missing; the last lines of the log are in the text.
    """
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        try:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, env=environ, check=False)
        except FileNotFoundError as error:
            raise LocalClusterError(f"{doing} failed: {command[0]} is missing, install it") from error
    if done.returncode != 0:
        raise LocalClusterError(explain_failure(doing, done.returncode, log))


def explain_failure(doing: str, code: int, log: Path) -> str:
    """The sentence on a failed step, with the end of its log below it."""
    lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    full = any("No space left on device" in line for line in lines)
    cause = "the disk is full: free some room and run it again" if full else f"exit code {code}"
    return "\n".join([f"{doing} failed, {cause}; the whole log is {log}", *(f"  {line}" for line in lines)])
