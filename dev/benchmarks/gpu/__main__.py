"""`python3 -m dev.benchmarks.gpu`: measure on a GPU what a CPU cannot show. Prints a line of JSON for each figure, and writes them to a file.

Each part is a process of its own with a time limit, so that one that fails or hangs costs no other its figures.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from tests.gpu import ROOT, python_path

LIMITS = {"steps": 90, "ends": 120, "memory": 90, "checkpoints": 240, "restarts": 240, "compiling": 240}
"""The parts, and the most seconds for each."""
MARK = "TRAINYARD_GPU_BENCHMARK"


def main() -> int:
    """Run the parts; the exit code is 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="python3 -m dev.benchmarks.gpu", description=__doc__)
    parser.add_argument("--parts", default=",".join(LIMITS), help="in this order")
    parser.add_argument("--certificates", type=Path, help="for restarts: ca.crt, tls.crt and tls.key for localhost")
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench/gpu.jsonl")
    options = parser.parse_args()
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    with options.output.open("w") as output:
        for part in options.parts.split(","):
            if part == "restarts" and options.certificates is None:
                print("restarts: skipped, since it needs --certificates", flush=True)  # noqa: T201 - for who runs it
                continue
            words = [str(options.certificates)] if part == "restarts" else []
            began = time.monotonic()
            code = _run([sys.executable, "-m", f"dev.benchmarks.gpu.{part}", *words], environment, LIMITS[part], output)
            print(f"{part}: exit code {code} after {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201 - as above
            failed += [part] if code else []
    return 1 if failed else 0


def _run(command: list[str], environment: dict[str, str], limit: float, output: TextIO) -> int:
    """Run a part, and copy its lines. Returns its exit code; 124 after its time limit."""
    mark = f"{MARK}={os.getpid()}"
    with tempfile.TemporaryFile("w+") as written:
        part = subprocess.Popen(
            command, env={**environment, MARK: str(os.getpid())}, cwd=ROOT, stdout=written, stderr=subprocess.STDOUT
        )
        try:
            code = part.wait(limit)
        except subprocess.TimeoutExpired:
            code = 124
        _kill_all(mark.encode())
        part.wait()
        written.seek(0)
        lines = written.read().splitlines()
    output.writelines(f"{line}\n" for line in lines if line.startswith("{"))
    output.flush()
    print("\n".join(lines[-40:]), flush=True)  # noqa: T201 - as above
    return code


def _kill_all(mark: bytes) -> None:
    """Kill what a part has left: it would keep the memory of the GPU."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
