"""PyTorch: the environment of `torchrun` and of `torch.distributed`'s env:// start.

Two ways to start are served at once. A command that is torchrun finds everything in `PET_*`, its own variables. A plain
`python train.py`, one process a worker, finds `RANK`, `WORLD_SIZE` and the master. Where a worker has several processes
only torchrun knows their ranks, so `RANK` and `WORLD_SIZE` are left to it: set for the worker they would mean another thing.
"""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from trainyard.domain.state.rank_layout import meets_by_itself, processes
from trainyard.frameworks.worker_spec import Json, Worker, cpus

PORT, PORTS = 29500, 500
IDENTITY = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"}
    | {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_BACKEND"},
)
"""Variables that say who is who. Set by hand they may not fit the real group: the user is warned."""
RECORDER = frozenset({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"})
"""The size of the flight recorder, off in some releases, under its new and its old name. torch reads the new one first: who has set one
means both."""


def identity(worker: Worker) -> list[Json]:
    """Who this worker is and where the others are."""
    per_worker = processes(worker.spec)
    master_port = port(worker)
    variables: dict[str, str] = {
        "MASTER_ADDR": worker.master,
        "MASTER_PORT": str(master_port),
        "NODE_RANK": str(worker.index),
        "PET_NNODES": _workers(worker),
        "PET_NPROC_PER_NODE": str(per_worker),
        "PET_NODE_RANK": str(worker.index),
        "PET_MASTER_ADDR": worker.master,
        "PET_MASTER_PORT": str(master_port),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"[{worker.master}]:{master_port}"
        if ":" in worker.master
        else f"{worker.master}:{master_port}",
        "PET_RDZV_ID": worker.run_id,
        # Worker 0 alone holds the store: left to itself, torchrun guesses from host names. The others wait for it as
        # long as for the rendezvous, since its image may take minutes to arrive.
        "PET_RDZV_CONF": f"is_host={1 if worker.index == 0 else 0},join_timeout=900,read_timeout=900",
        # Under this address torchrun announces the worker, and by it orders the ranks (as text). A pod's IP would do, but
        # by name worker 0 always holds rank 0: its log is the one to read, its death the one that takes the store along.
        "PET_LOCAL_ADDR": worker.address,
        # Recovery is of the whole group, by the operator, unless torchrun is to see to it.
        "PET_MAX_RESTARTS": str(worker.spec.recovery.max_restarts) if meets_by_itself(worker.spec) else "0",
    }
    if per_worker == 1 and not meets_by_itself(worker.spec):
        variables |= {
            "RANK": str(worker.index),
            "WORLD_SIZE": str(worker.workers),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }
    return [{"name": name, "value": value} for name, value in variables.items()]


def _workers(worker: Worker) -> str:
    elastic = worker.spec.elastic
    return f"{elastic.lowest}:{elastic.highest}" if elastic and meets_by_itself(worker.spec) else str(worker.workers)


def tuning(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Settings that are safe everywhere and that users otherwise find out about in a bad night.

    What depends on the hardware is left to the user, to the image and to the platform's plugins, which know better.
    TORCHELASTIC_ERROR_FILE is not among them: torchrun removes the file before it writes it, which it cannot do with the
    termination log, a mount; its OSError would then stand there in place of the rank's error.
    """
    variables = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        # 3 leaves the flight recorder's dump intact, which 1 (torchrun's choice) can lose: pytorch#121055.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        # A shared store can hold keys of an earlier round: pytorch#135712.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "NCCL_DEBUG": "WARN",
    }
    if RECORDER.isdisjoint(variable["name"] for variable in container.get("env") or ()):
        variables |= dict.fromkeys(sorted(RECORDER), "2000")
    if (threads := cpus(container)) is not None:
        variables["OMP_NUM_THREADS"] = str(max(1, threads // processes(worker.spec)))
    if worker.host_network:
        # A node has bridges and virtual interfaces that lead nowhere; NCCL would choose one of them.
        variables["NCCL_SOCKET_IFNAME"] = "^lo,docker,veth,cni,cali,flannel,kube,virbr"
        variables["NCCL_RAS_ADDR"] = f"localhost:{port(worker) + 1}"
    else:
        # The name that every CNI plugin gives to a pod's first interface.
        variables["GLOO_SOCKET_IFNAME"] = "eth0"
        variables["TP_SOCKET_IFNAME"] = "eth0"
    return [{"name": name, "value": value} for name, value in variables.items()]


def port(worker: Worker) -> int:
    """The port of the rendezvous and of rank 0's store: another one in each attempt, so that no straggler of the one before is let in.

    Its own for each job where jobs share a node's ports.
    """
    if worker.host_network:
        return 20000 + 2 * ((crc32(worker.job.uid.encode()) + worker.meeting) % 5000)
    return PORT + (worker.meeting - 1) % PORTS
