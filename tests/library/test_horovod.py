"""The real Horovod, without horovodrun: the ranks of two workers meet at the store that the agent of worker 0 serves.

`make test-long` runs it in the image of `examples/frameworks-horovod`.
"""

import ctypes
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path("/opt/horovod/site-packages")
"""In that image. These tests have a search path of their own."""
pytestmark = pytest.mark.skipif(not PACKAGES.is_dir(), reason="make test-long runs it in an image with horovod")
CLONE_NEWUTS = 0x4000000
AGENT = Path(__file__).parents[2] / "trainer-image/agent"
RANKS = (
    "HOROVOD_RANK=rank,HOROVOD_SIZE=world-size,HOROVOD_LOCAL_RANK=local-rank,HOROVOD_LOCAL_SIZE=local-world-size,"
    "HOROVOD_CROSS_RANK=worker,HOROVOD_CROSS_SIZE=workers"
)
ELASTIC = """
import sys
import torch
import horovod.torch as hvd
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters())
@hvd.elastic.run
def train(state):
    while state.batch < 5:
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        state.batch += 1
        state.commit()
train(hvd.elastic.TorchState(model=model, optimizer=optimizer, batch=0))
with open(f"rank-{hvd.rank()}", "w") as file:
    file.write(f"{hvd.size()} {hvd.local_size()} {hvd.cross_size()}")
"""
KILLED = """
import os
import signal
import torch
import horovod.torch as hvd
hvd.init()
for step in range(1000):
    hvd.allreduce(torch.ones(3), name="gradient")
    if step == 20 and hvd.rank() == 3: os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module", autouse=True)
def host_name() -> None:
    """Take a host name that has an address, as pods have: gloo looks for it."""
    assert ctypes.CDLL(None).unshare(CLONE_NEWUTS) == 0
    socket.sethostname("127.0.0.1")


def run(folder: Path, program: str) -> list[tuple[int, str]]:
    """Run the program in two workers with two ranks each; the exit code and the termination message of each worker."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    workers = []
    # The second one is there first, and has to wait.
    for index in (1, 0):
        own = folder / f"worker-{index}"
        own.mkdir()
        (own / "message").touch()
        (own / "train.py").write_text(program)
        environment = {
            **os.environ,
            "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{PACKAGES}",
            "TRAINYARD_TERMINATION_LOG": str(own / "message"),
            "TRAINYARD_REPLICA_INDEX": str(index),
            "TRAINYARD_REPLICAS": "2",
            "TRAINYARD_PROCESSES_PER_REPLICA": "2",
            "TRAINYARD_ATTEMPT": "1",
            "TRAINYARD_JOB_UID": "uid",
            "TRAINYARD_RANK_VARIABLES": RANKS,
            "TRAINYARD_HOROVOD_RENDEZVOUS": f"127.0.0.1:{port}",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_HOSTNAME": f"job-worker-{index}",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }
        words = [sys.executable, str(AGENT), "--", sys.executable, "train.py"]
        workers.append(subprocess.Popen(words, env=environment, cwd=own))
    codes = [worker.wait(timeout=120) for worker in reversed(workers)]
    return [(code, (folder / f"worker-{index}/message").read_text()) for index, code in enumerate(codes)]


def test_elastic_program_meets_at_the_store(tmp_path: Path) -> None:
    assert run(tmp_path, ELASTIC) == [(0, ""), (0, "")]
    assert {path.name: path.read_text() for path in tmp_path.glob("worker-*/rank-*")} == {
        f"rank-{rank}": "4 2 2" for rank in range(4)
    }


def test_killed_rank_is_the_cause(tmp_path: Path) -> None:
    (victim, lost), (code, message) = run(tmp_path, KILLED)
    assert (victim, json.loads(lost.partition("\n")[0])["peerLost"]) == (1, True)
    assert (code, json.loads(message.partition("\n")[0])["rank"]) == (137, 3)
