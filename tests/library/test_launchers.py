"""Launchers of other frameworks form one group of two workers, since the agent adds the options for it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.library.support.programs import free_port

AGENT = "import sys; from trainyard_agent.main import main; sys.exit(main())"
WORKERS, PROCESSES = 2, 2
END = """
print(f"rank {rank} of {size}: {int(total)}", flush=True)
# gloo's threads would now and then abort a process that has ended well.
os._exit(0)
"""
ACCELERATE = f"""
import os
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
rank, size = accelerator.process_index, accelerator.num_processes
total = accelerator.reduce(torch.ones(1), "sum")
accelerator.wait_for_everyone()
{END}"""
FABRIC = f"""
import os
import torch
from lightning.fabric import Fabric
fabric = Fabric()
rank, size = fabric.global_rank, fabric.world_size
total = fabric.all_reduce(torch.ones(1), reduce_op="sum")
fabric.barrier()
{END}"""
PLAIN = f"""
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, size, total = dist.get_rank(), dist.get_world_size(), torch.ones(1)
dist.all_reduce(total)
dist.barrier()
{END}"""


def worker(index: int, port: int, command: list[str], **more: str) -> "subprocess.Popen[str]":
    """Start the agent of a worker with the variables that the operator sets, and `more`."""
    variables = {
        "TRAINYARD_REPLICAS": str(WORKERS),
        "TRAINYARD_REPLICA_INDEX": str(index),
        "TRAINYARD_PROCESSES_PER_REPLICA": str(PROCESSES),
        "TRAINYARD_ATTEMPT": "1",
        "TRAINYARD_JOB_UID": "uid",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(port),
        "PET_NNODES": str(WORKERS),
        "PET_NPROC_PER_NODE": str(PROCESSES),
        "PET_NODE_RANK": str(index),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"localhost:{port}",
        "PET_RDZV_ID": "uid-1",
        "PET_RDZV_CONF": f"is_host={int(index == 0)},join_timeout=120,read_timeout=120",
        "PET_LOCAL_ADDR": f"127.0.0.{index + 1}",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }
    return subprocess.Popen(
        [sys.executable, "-c", AGENT, "--once", "--", *command],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("launcher", "program"),
    [
        (["-m", "torch.distributed.run"], PLAIN),
        (["-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "2"], ACCELERATE),
        (["-m", "lightning.fabric.cli", "--accelerator", "cpu"], FABRIC),
    ],
    ids=["torchrun", "accelerate", "fabric"],
)
def test_unmodified_launcher_forms_one_group(tmp_path: Path, launcher: list[str], program: str) -> None:
    path, port = tmp_path / "train.py", free_port()
    path.write_text(program)
    agents = [worker(index, port, [sys.executable, *launcher, str(path)]) for index in range(WORKERS)]
    try:
        outputs = [agent.communicate(timeout=120) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    found = re.findall(r"rank (\d) of (\d): (\d)", "".join(output for output, _ in outputs))
    assert sorted(found) == [(str(rank), "4", "4") for rank in range(4)]


def test_torchrun_follows_the_order_of_workers(tmp_path: Path) -> None:
    """Only the first one announces an address, to which the others connect. Those of the others sort them by rank."""
    path, port, order = tmp_path / "train.py", free_port(), (0, 2, 1)
    path.write_text('import os\nprint(f\'worker {os.environ["TRAINYARD_REPLICA_INDEX"]} rank {os.environ["RANK"]}\')\n')
    agents = [
        worker(
            index,
            port,
            [sys.executable, "-m", "torch.distributed.run", str(path)],
            TRAINYARD_REPLICAS="3",
            PET_NNODES="3",
            PET_NPROC_PER_NODE="1",
            TRAINYARD_PROCESSES_PER_REPLICA="1",
            TRAINYARD_GROUP_RANK=str(order.index(index)),
            PET_LOCAL_ADDR="localhost" if index == 0 else f"localhost~{order.index(index):05}",
        )
        for index in range(3)
    ]
    try:
        outputs = [agent.communicate(timeout=120) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0] * 3, outputs
    found = re.findall(r"worker (\d) rank (\d)", "".join(output for output, _ in outputs))
    assert sorted(found) == [("0", "0"), ("1", "2"), ("2", "1")]
