"""Imports image archives into the seed store: containerd runs for just that long, in namespaces of its own.

Arguments: containerd, ctr, containerd's configuration, then the archives.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dev.localcluster.node_config import CONTAINERD_SOCKET
from dev.localcluster.say import complain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

SOCKET_SECONDS: Final = 20.0


def main() -> int:
    """Exit code 1, with ctr's own words on stderr, where an archive cannot be imported."""
    containerd, ctr, configuration, *archives = sys.argv[1:]
    with ExitStack() as stack:
        # Opened first, as they may lie below the /run that is about to be covered.
        files = [stack.enter_context(Path(archive).open("rb")) for archive in archives]
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        log = stack.enter_context(Path(configuration).with_suffix(".log").open("wb"))
        daemon = subprocess.Popen([containerd, f"--config={configuration}"], stdout=log, stderr=log)
        try:
            _await_socket(daemon)
            return _import(ctr, files)
        finally:
            daemon.terminate()  # not killed: its databases shall be closed before they are copied
            daemon.wait()


def _await_socket(daemon: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + SOCKET_SECONDS
    while not Path(CONTAINERD_SOCKET).exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            sys.exit("containerd did not start")
        time.sleep(0.02)


def _import(ctr: str, files: Sequence[BinaryIO]) -> int:
    for file in files:
        command = [ctr, f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io", "images", "import", "--local", "-"]
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
        if done.returncode:
            words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            complain(f"{file.name} is not an OCI archive that containerd accepts: {words[-1]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
