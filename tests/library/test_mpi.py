"""Open MPI, MPICH and Intel MPI start ranks in two workers by their agents, and what they do when a rank or a daemon fails.

`make test-long` runs it with their wheels. All processes run in one network namespace. The workers have addresses there that belong to
none of its interfaces, so each MPI takes them for other hosts.
"""

import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainyard_agent.processes import descendants

pyroute2 = pytest.importorskip("pyroute2", reason="make test-long installs it")
CLONE_NEWNET, CLONE_NEWUTS = 0x40000000, 0x4000000
OWN_ADDRESS = "10.99.0.1"
DRIVER = Path(__file__).parent / "support/mpi_worker.py"
NETWORK = "10.99.1"
HOSTS = (f"{NETWORK}.0", f"{NETWORK}.1")
PROGRAM = """
import os, sys, time
from mpi4py import MPI
world, folder = MPI.COMM_WORLD, sys.argv[1]
with open(f"{folder}/rank-{world.rank}", "w") as file:
    file.write(f"{world.allreduce(world.rank)} of {world.size} in {os.environ['WHERE']} by {MPI.Get_library_version()}")
open(f"{folder}/all-run-{world.rank}", "w").close()
mode = sys.argv[2]
if mode == "fail" and world.rank == 3:
    raise ValueError("no data")
if mode != "end":
    time.sleep(120)
"""


@dataclass(frozen=True, slots=True)
class Mpi:
    """An implementation of MPI, as its wheel installs it."""

    name: str
    launcher: str
    daemon: str
    package: str
    """The folder of the wheel's own description begins so."""
    library: str

    @property
    def home(self) -> Path:
        """The folder with its programs. Skips the test where it is not installed."""
        for entry in map(Path, sys.path):
            if (entry / "mpi4py").is_dir() and any(entry.glob(f"{self.package}-*.dist-info")):
                return entry
        pytest.skip(f"{self.package} is not installed: make test-long")


OPEN_MPI = Mpi("Open MPI", "mpirun", "prted", "openmpi", "libmpi.so.40")
MPICH = Mpi("MPICH", "mpiexec", "hydra_pmi_proxy", "mpich", "libmpi.so.12")
INTEL = Mpi("Intel", "mpiexec.hydra", "hydra_pmi_proxy", "impi_rt", "libmpi.so.12")
EACH = pytest.mark.parametrize("mpi", [OPEN_MPI, MPICH, INTEL], ids=lambda mpi: mpi.name)


@pytest.fixture(scope="module", autouse=True)
def network() -> None:
    """Leave the machine's network for one with an interface, and addresses beside it that lead back to this machine."""
    assert ctypes.CDLL(None).unshare(CLONE_NEWNET | CLONE_NEWUTS) == 0
    # Daemons of Hydra look for the launcher by the name of its host.
    socket.sethostname(OWN_ADDRESS)
    with pyroute2.IPRoute() as routes:
        routes.link("add", ifname="eth0", kind="veth", peer={"ifname": "eth1"})
        for name in ("lo", "eth0", "eth1"):
            (number,) = routes.link_lookup(ifname=name)
            routes.link("set", index=number, state="up")
        routes.addr("add", index=routes.link_lookup(ifname="eth0")[0], address=OWN_ADDRESS, prefixlen=24)
        # 255: the table of local addresses.
        routes.route("add", dst=f"{NETWORK}.0/24", oif=1, type="local", scope="host", table=255)


class Job:
    """Two workers with two ranks each. The first one runs the launcher."""

    def __init__(self, mpi: Mpi, folder: Path, mode: str) -> None:
        self.mpi, self.folder, self.workers = mpi, folder, list[subprocess.Popen[str]]()
        (folder / "program.py").write_text(PROGRAM)
        home = mpi.home
        # The program of this MPI alone: others may be beside it.
        path = [str(home), *(entry for entry in sys.path if not (Path(entry) / "mpi4py").is_dir())]
        command = [str(home / "bin" / mpi.launcher), sys.executable, "-m", "mpi4py", str(folder / "program.py")]
        if mode == "background":
            command = ["sh", "-c", f'{shlex.join(command)} "$@" & exit 0', "sh"]
        (folder / "tmp").mkdir()
        for index in range(2):
            own = folder / f"worker-{index}"
            own.mkdir()
            environment = {
                **os.environ,
                "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": ":".join(filter(None, path)),
                # The image has another MPI.
                "MPI4PY_LIBMPI": str(home / "lib" / mpi.library),
                "TMPDIR": str(folder / "tmp"),
                "WHERE": f"worker {index}",
                "TRAINYARD_REPLICA_INDEX": str(index),
                "TRAINYARD_REPLICAS": "2",
                "TRAINYARD_PROCESSES_PER_REPLICA": "2",
                "TRAINYARD_ATTEMPT": "1",
                "TRAINYARD_JOB_UID": "uid",
                "TRAINYARD_WORKER_NAME": f"{NETWORK}.{{index}}",
                "TRAINYARD_WORKER_ADDRESSES": ",".join(HOSTS),
                "TRAINYARD_REMOTE_START_PORT": "29600",
                **{
                    f"{layer}_ALLOW_RUN_AS_ROOT{suffix}": "1"
                    for layer in ("OMPI", "PRTE")
                    for suffix in ("", "_CONFIRM")
                },
                "PRTE_MCA_hwloc_default_binding_policy": "none",
                "I_MPI_PIN": "0",
            }
            words = [sys.executable, str(DRIVER), str(folder), *command, str(folder), mode]
            self.workers.append(
                subprocess.Popen(
                    words, env=environment, cwd=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )

    def results(self) -> list[dict[str, Any]]:
        """Wait until both workers have ended, and return how."""
        outputs = [worker.communicate(timeout=90)[0] for worker in self.workers]
        assert [worker.returncode for worker in self.workers] == [0, 0], outputs
        return [json.loads((self.folder / f"result-{index}").read_text()) for index in range(2)]

    def await_ranks(self) -> None:
        """Wait until all four ranks have met."""
        end = time.monotonic() + 60
        while len([*self.folder.glob("all-run-*")]) < 4:
            ended = [worker for worker in self.workers if worker.poll() is not None]
            assert not ended, [worker.communicate()[0] for worker in ended]
            assert time.monotonic() < end, "the ranks did not meet"
            time.sleep(0.1)

    def kill_daemon(self) -> None:
        """Kill the daemon of the second worker."""
        programs = {pid: words_of(pid)[0] for pid in descendants(self.workers[1].pid)}
        # That of Open MPI has a child of the same name.
        os.kill(min(pid for pid, program in programs.items() if Path(program).name == self.mpi.daemon), signal.SIGKILL)

    def kill(self) -> None:
        """End what is left."""
        for worker in self.workers:
            for pid in (*descendants(worker.pid), worker.pid) if worker.poll() is None else ():
                os.kill(pid, signal.SIGKILL)
            worker.communicate(timeout=30)


def words_of(pid: int) -> list[str]:
    """Return the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


@contextmanager
def running(mpi: Mpi, folder: Path, mode: str) -> Iterator[Job]:
    """Run a job whose ranks end, of which one fails, or which stay."""
    made = Job(mpi, folder, mode)
    try:
        yield made
    finally:
        made.kill()


@EACH
def test_ranks_run_in_both_workers(mpi: Mpi, tmp_path: Path) -> None:
    with running(mpi, tmp_path, "end") as job:
        results = job.results()
    assert [result["done"] for result in results] == [True, True], results
    texts = [(tmp_path / f"rank-{rank}").read_text() for rank in range(4)]
    assert all(text.startswith("6 of 4 in worker ") and mpi.name in text for text in texts), texts


@EACH
def test_failing_rank_fails_its_worker(mpi: Mpi, tmp_path: Path) -> None:
    """Its exception is known, although the launcher gets what it prints, and Hydra then kills all ranks."""
    with running(mpi, tmp_path, "fail") as job:
        launcher, other = job.results()
    data = json.loads(other["message"].partition("\n")[0])
    assert (data["kind"], data["rank"], data.get("peerLost")) == ("failed", 3, None), other
    assert data.get("exception") == "ValueError: no data", other
    assert not launcher["done"]
    # Of several failures, the operator takes the first one for the cause.
    assert launcher["at"] is None or launcher["at"] > other["at"]


@EACH
def test_killed_daemon_fails_the_attempt(mpi: Mpi, tmp_path: Path) -> None:
    """Also where the launcher exits with 0 then, as that of Open MPI, or never."""
    with running(mpi, tmp_path, "stay") as job:
        job.await_ranks()
        job.kill_daemon()
        launcher, other = job.results()
    assert other["code"] == 128 + signal.SIGKILL, other
    data = json.loads(other["message"].partition("\n")[0])
    assert (data["kind"], data["exitCode"], data.get("peerLost")) == ("failed", 137, None)
    assert not launcher["done"]


@EACH
def test_launcher_in_the_background_is_no_success(mpi: Mpi, tmp_path: Path) -> None:
    with running(mpi, tmp_path, "background") as job:
        launcher, other = job.results()
    assert "still runs; let the command wait for it" in launcher["message"], launcher
    assert [result["done"] for result in (launcher, other)] == [False, False]
