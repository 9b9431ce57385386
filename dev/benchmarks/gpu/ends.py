"""`python -m dev.benchmarks.gpu.ends`: how soon a rank on a GPU is gone after a signal or an exception, with its memory, and NCCL's records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from dev.benchmarks.gpu.model import emit

GB = 10**9
TAKEN = 60
REPEATS = 3
HOLDS = f"""
import os, signal, sys, time
import torch
kept = torch.empty({TAKEN} * 10**9, dtype=torch.uint8, device="cuda")
kept.fill_(1)
torch.cuda.synchronize()
print(time.time(), flush=True)
torch.cuda._sleep(10**12)
if os.fork() == 0: time.sleep(600)
time.sleep(600)
"""
RAISES = """
import threading, time, torch
from trainyard_torch import start
with start() as training:
    threading.Thread(target=threading.Event().wait).start()
    torch.cuda._sleep(200_000_000_000)
    print(time.time(), flush=True)
    raise ValueError("lost")
"""
RECORDS = """
import os, time, torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29555", rank=0, world_size=1, device_id=torch.device("cuda", 0))
for _ in range(100): dist.all_reduce(torch.ones(1024, device="cuda"))
torch.cuda.synchronize()
print(time.time(), flush=True)
time.sleep(60)
"""


def started(text: str, **more: str) -> subprocess.Popen[str]:
    """Start a program, and wait for its first line."""
    made = subprocess.Popen(
        [sys.executable, "-c", text],
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if made.stdout is None or not made.stdout.readline():
        raise SystemExit(made.communicate()[1])
    return made


def signals() -> None:
    """Kill a rank that holds most of the memory, and start the next at once."""
    for name, number in (("SIGKILL", signal.SIGKILL), ("SIGTERM", signal.SIGTERM)):
        gone, again = [], []
        held = started(HOLDS)
        for _ in range(REPEATS):
            began = time.time()
            os.killpg(held.pid, number)
            held.wait()
            gone.append(time.time() - began)
            # Needs the memory that the last one has held.
            held = started(HOLDS)
            again.append(time.time() - began)
        os.killpg(held.pid, signal.SIGKILL)
        held.wait()
        emit("signal", system=name, gone_s=median(gone), longest_s=max(gone), next_holds_memory_s=median(again))


def exception() -> None:
    """Let a rank raise while a kernel runs and a thread waits for ever."""
    with started(RAISES) as rank:
        began = time.time()
        _, errors = rank.communicate(timeout=120)
        emit("exception", gone_s=time.time() - began, code=rank.returncode, shown="ValueError: lost" in errors)


def records() -> None:
    """Ask NCCL's flight recorder for its file as the agent does, and look for NCCL's output in the standard error."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        variables = {
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/",
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{folder}/rank_",
            "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_",
            "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT,NET",
            "NCCL_DEBUG_FILE": "/dev/stderr",
        }
        rank = started(RECORDS, **variables)
        pipe, file = folder / "0.pipe", folder / "rank_0"
        pipes = sorted(each.name for each in folder.iterdir())
        began, asked = time.monotonic(), pipe.exists()
        if asked:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            os.write(descriptor, b"1\n")
            os.close(descriptor)
        while asked and time.monotonic() - began < 10 and not (file.exists() and file.read_bytes()[-1:] == b"."):
            time.sleep(0.01)
        took = time.monotonic() - began
        rank.kill()
        errors = rank.communicate()[1]
        written = file.stat().st_size if file.exists() else 0
        lines = [line for line in errors.splitlines() if "NCCL INFO" in line]
        emit("flight recorder", pipes=pipes, seconds=took, bytes=written, nccl_lines=len(lines), sample=lines[:3])


def main() -> int:
    """Measure all."""
    for part in (records, exception, signals):
        part()
    return 0


if __name__ == "__main__":
    sys.exit(main())
