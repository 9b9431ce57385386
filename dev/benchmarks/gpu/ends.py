"""`python -m dev.benchmarks.gpu.ends`: how soon a rank on a GPU is gone after a signal or an exception, with its memory, and NCCL's records."""

from __future__ import annotations

import json
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
STARTS = """
import time
marks = {}
def mark(name): marks[name] = time.time()
import torch, torch.distributed as dist
mark("import_torch")
import trainyard_torch as ty
ty.start, ty.replicate
mark("import_library")
torch.cuda.set_device(0)
torch.ones(1, device="cuda")
torch.cuda.synchronize()
mark("context")
with ty.start(seed=1) as training:
    mark("start")
    model = ty.replicate(torch.nn.Linear(2048, 2048).to(training.device), training.mesh)
    torch.cuda.synchronize()
    mark("replicate")
    sent = torch.ones(1)
    dist.all_reduce(sent)
    mark("first_gloo")
    sent = torch.ones(1, device="cuda")
    dist.all_reduce(sent)
    torch.cuda.synchronize()
    mark("first_nccl")
    model(torch.ones(8, 2048, device="cuda")).square().mean().backward()
    torch.cuda.synchronize()
    mark("first_step")
mark("end")
import json
print()
print(json.dumps(marks), flush=True)
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
    """Ask NCCL's flight recorder for its file as the agent does, twice, and look for NCCL's output in the standard error."""
    variants = {
        "usual": {},
        "no stacks": {"TORCH_INCLUDE_STACK_TRACE": "0"},
        "check often": {"TORCH_NCCL_COORD_CHECK_MILSEC": "100"},
    }
    for name, more in variants.items():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            variables = {
                "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/",
                "TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_",
                "TORCH_FR_BUFFER_SIZE": "2000",
                "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_SUBSYS": "INIT,NET",
                "NCCL_DEBUG_FILE": "/dev/stderr",
            }
            rank = started(RECORDS, **variables, **more)
            pipes = sorted(each.name for each in folder.iterdir())
            seconds = [_asked(folder / "0.pipe", folder / "rank_0") for _ in range(3)]
            rank.kill()
            errors = rank.communicate()[1]
            lines = [line for line in errors.splitlines() if "NCCL INFO" in line]
            warnings = [line[-160:] for line in errors.splitlines() if "deprecated" in line]
            size = (folder / "rank_0").stat().st_size if (folder / "rank_0").exists() else 0
            emit(
                "flight recorder",
                system=name,
                pipes=pipes,
                seconds=seconds,
                bytes=size,
                nccl_lines=len(lines),
                warnings=warnings,
            )


def _asked(pipe: Path, file: Path) -> float:
    """Ask for the file once, and return the seconds until it is whole; 15 if it is not by then."""
    file.unlink(missing_ok=True)
    began = time.monotonic()
    descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    os.write(descriptor, b"1\n")
    os.close(descriptor)
    while time.monotonic() - began < 15 and not (file.exists() and file.read_bytes()[-1:] == b"."):
        time.sleep(0.01)
    return round(time.monotonic() - began, 2)


def start_up() -> None:
    """Print the seconds of each part of a start, from the begin of the process on."""
    for _ in range(2):
        began = time.time()
        with started(STARTS) as rank:
            output = rank.communicate(timeout=60)[0]
        marks = json.loads(output.splitlines()[-1])
        times = [began, *marks.values()]
        parts = {name: end - start for name, start, end in zip(marks, times, times[1:], strict=False)}
        emit("start", **parts)


def main() -> int:
    """Measure all."""
    for part in (start_up, exception, signals, records):
        part()
    return 0


if __name__ == "__main__":
    sys.exit(main())
