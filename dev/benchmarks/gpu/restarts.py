"""`python -m dev.benchmarks.gpu.restarts CERTIFICATES`: from the kill of a rank on a GPU to its next step, under the agent.

CERTIFICATES: a folder with `ca.crt`, `tls.crt` and `tls.key` for localhost (`dev.benchmarks.agents.credentials`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipapp
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from dev.benchmarks.gpu.model import emit
from tests.library.support.programs import free_port
from tests.unit.agent.fake_operator import FakeOperator, credentials, serve_operator

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
IMPORTS = {"torch": "", "transformers": "import transformers, accelerate\n"}
REPEATS = 3
PROGRAM = """
import os, time
import torch
{imports}import trainyard_torch as ty

marks = {{"import": time.time()}}
wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
with ty.start(seed=1) as training:
    model = ty.replicate(torch.nn.Linear(2048, 2048).to(training.device), training.mesh)
    torch.distributed.all_reduce(torch.ones(1, device=training.device))
    wait()
    marks["connect"] = time.time()
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(1, 10**6):
        model(torch.ones(8, 2048, device=training.device)).square().mean().backward()
        optimizer.step()
        training.progress(number)
        if number == 20 and os.environ.get("HANGS_IN") == os.environ["TRAINYARD_ATTEMPT"]:
            torch.cuda._sleep(10**13)
            torch.cuda.synchronize()
        if number == 1:
            wait()
            marks["step"] = time.time()
            text = " ".join(f"{{name}}={{value}}" for name, value in marks.items())
            with open("attempt.new", "w") as file: file.write(f"{{os.getpid()}} {{text}}")
            os.rename("attempt.new", "attempt-" + os.environ["TRAINYARD_ATTEMPT"])
        time.sleep(0.01)
"""


class Run:
    """One agent with one rank, and the operator that it polls."""

    def __init__(
        self, agent: Path, folder: Path, operator: FakeOperator, imports: str, *, warm: bool, **more: str
    ) -> None:
        self._folder, self.operator = folder, operator
        (folder / "train.py").write_text(PROGRAM.format(imports=imports))
        variables = {
            "TRAINYARD_REPLICA_INDEX": "0",
            "TRAINYARD_REPLICAS": "1",
            "TRAINYARD_PROCESSES_PER_REPLICA": "1",
            "TRAINYARD_ATTEMPT": "1",
            "TRAINYARD_JOB_UID": "uid",
            "TRAINYARD_WARM_START": str(int(warm)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "TRAINYARD_TERMINATION_LOG": str(folder / "log"),
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }
        operator.order(1, run=True)
        # Not the agent's source, which has a `sitecustomize` of its own: the archive has it, too.
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "trainer-image/library")}
        self.process = subprocess.Popen(
            [sys.executable, str(agent), "--", sys.executable, "train.py"],
            cwd=folder,
            env={**environment, **variables, **credentials(folder, operator.port), **more},
            stdin=subprocess.DEVNULL,  # with an input of its own, no rank starts warm
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for_line(self, *words: str) -> str:
        """Return the first line of the agent with one of these words, or the last line after a minute."""
        end = time.monotonic() + 25
        while time.monotonic() < end:
            for line in self.lines:
                if any(word in line for word in words):
                    return line
            time.sleep(0.02)
        return "; ".join(["none", *self.lines[-5:]])

    def restart(self, attempt: int, signal_number: int = signal.SIGKILL) -> dict[str, float]:
        """Kill the rank, and return the seconds of each part until the first step of the next attempt."""
        pid = int(self.file(attempt).split()[0])
        time.sleep(0.5)
        began = time.time()
        os.kill(pid, signal_number)
        self.operator.wait_for("failed", attempt)
        self.operator.order(attempt + 1, run=True, MASTER_PORT=str(free_port()))
        marks = dict(each.split("=") for each in self.file(attempt + 1).split()[1:])
        times = [began, *(float(marks[name]) for name in ("import", "connect", "step"))]
        return {
            name: end - start
            for name, start, end in zip(("start and import", "connect", "step"), times, times[1:], strict=False)
        } | {"all": times[-1] - began}

    def file(self, attempt: int) -> str:
        """Wait for the file of an attempt's first step."""
        path, end = self._folder / f"attempt-{attempt}", time.monotonic() + 60
        while not path.exists():
            if time.monotonic() > end:
                raise SystemExit(f"attempt {attempt} has made no step: {self.lines}")
            time.sleep(0.005)
        return path.read_text()

    def close(self) -> None:
        """End the agent and its rank."""
        self.operator.fixed_answer = 410, {"reason": "Over", "message": "the job has ended"}
        self.operator.order(99, run=False)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.lines.append(line.rstrip())


@contextmanager
def running(agent: Path, certificates: Path, imports: str, *, warm: bool, **more: str) -> Iterator[Run]:
    """Run an agent and its operator in a folder of their own."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for each in certificates.iterdir():
            shutil.copy(each, folder)
        (folder / "token").write_text("a.b.c\n")
        with serve_operator(folder) as operator:
            run = Run(agent, folder, operator, imports, warm=warm, **more)
            try:
                run.file(1)
                yield run
            finally:
                run.close()


def measure(agent: Path, certificates: Path, name: str, *, warm: bool) -> None:
    """Kill one rank several times."""
    with running(agent, certificates, IMPORTS[name], warm=warm) as run:
        line = run.wait_for_line("prepared warm start", "disabled warm start") if warm else "off"
        emit("warm start", program=name, line=line)
        parts: list[dict[str, Any]] = [run.restart(attempt) for attempt in range(1, 1 + REPEATS)]
        disabled = [line for line in run.lines if "disabled" in line or "skipped" in line]
    medians = {key.replace(" ", "_"): round(median(part[key] for part in parts), 3) for key in parts[0]}
    emit("restart", program=name, warm=warm, disabled=disabled, **medians)


def hang(agent: Path, certificates: Path) -> None:
    """Let a kernel never end, and see what the agent makes of it."""
    limit = {"HANGS_IN": "1", "TRAINYARD_HANG_TIMEOUT_SECONDS": "3"}
    with running(agent, certificates, "", warm=True, **limit) as run:
        began = time.time()
        failure = run.operator.wait_for("failed")["failure"]
        failed = time.time() - began
        run.operator.order(2, run=True, MASTER_PORT=str(free_port()))
        marks = dict(each.split("=") for each in run.file(2).split()[1:])
        lines = [line[:200] for line in run.lines if "flight recorder" in line or "hang" in line]
    emit(
        "hang",
        reported_s=failed,
        next_step_s=float(marks["step"]) - began,
        code=failure["code"],
        message=failure["message"][:700],
        lines=lines[:6],
    )


def main() -> int:
    """Measure each program, with a warm start and without."""
    certificates = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        agent = Path(folder) / "trainyard-agent"
        zipapp.create_archive(ROOT / "trainer-image/agent", agent, "/usr/bin/env python3")
        hang(agent, certificates)
        for name, warm in (("transformers", True), ("torch", True), ("torch", False), ("transformers", False)):
            measure(agent, certificates, name, warm=warm)
    return 0


if __name__ == "__main__":
    sys.exit(main())
