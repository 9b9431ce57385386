# ruff: noqa: INP001, T201 - a script of the image's build, which speaks to the build's log
"""Make torch's TCPStore work in a torch that was built without libuv. Runs while the image is built.

Stores are asked for with `use_libuv=True` by default and at several places of torchrun's rendezvous, some of which
heed no setting. A torch without libuv (Debian's) then refuses them all. This puts, at the one place where Python code
gets TCPStore from, a subclass that always takes the plain backend. A torch that has libuv is left as it is.
It must not be imported by training programs: it edits an installed file.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

NATIVE_IMPORT = "    from torch._C._distributed_c10d import ("

PLAIN_STORE = """
    # Set when the image was built: this torch has no libuv, so every store takes the plain backend.
    class TCPStore(TCPStore):  # type: ignore[no-redef]
        __doc__ = TCPStore.__doc__

        def __init__(self, *args, **kwargs):
            kwargs["use_libuv"] = False
            super().__init__(*args, **kwargs)

"""

OPEN_A_STORE = "import torch.distributed as d; d.TCPStore('127.0.0.1', 0, 1, True, wait_for_workers=False)"


def with_plain_store(source: str) -> str:
    """`torch/distributed/__init__.py` with the subclass right behind the import of the native TCPStore."""
    start = source.find(NATIVE_IMPORT)
    end = source.find("\n    )\n", start)
    if start < 0 or end < 0 or "TCPStore," not in source[start:end]:
        raise ValueError("torch/distributed/__init__.py does not import TCPStore in the way that this file knows")
    end += len("\n    )\n")
    return source[:end] + PLAIN_STORE + source[end:]


def open_a_store() -> subprocess.CompletedProcess[str]:
    """A TCPStore with the default settings, in an interpreter of its own."""
    return subprocess.run([sys.executable, "-c", OPEN_A_STORE], capture_output=True, text=True, check=False)


def main() -> None:
    """Patch, unless a store opens already; then a store must open."""
    before = open_a_store()
    if before.returncode == 0:
        print("torch's TCPStore works as installed: nothing to patch")
        return
    if "libuv" not in before.stderr:
        raise SystemExit(f"torch's TCPStore fails, although libuv is not the cause:\n{before.stderr}")
    package = find_spec("torch")
    if package is None or package.origin is None:
        raise SystemExit("torch is not installed in this image")
    init = Path(package.origin).parent / "distributed" / "__init__.py"
    init.write_text(with_plain_store(init.read_text()))
    after = open_a_store()
    if after.returncode != 0:
        raise SystemExit(f"torch's TCPStore still fails after the patch of {init}:\n{after.stderr}")
    print(f"torch has no libuv: its TCPStore now takes the plain backend ({init})")


if __name__ == "__main__":
    main()
