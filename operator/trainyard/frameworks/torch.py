"""PyTorch: the environment of `torchrun` and of `torch.distributed` with `env://` initialization.

Both ways to start are served. A `torchrun` command finds everything in its own variables, `PET_*`. A plain
`python train.py` with one process per worker finds `RANK`, `WORLD_SIZE` and the master. With several processes per worker
only the agent or torchrun knows the ranks, so `RANK` and `WORLD_SIZE` are not set. With them, Lightning would start one
process per worker, for example. A launcher whose flags refer to them gets the index and the number of workers, as under
Kubeflow's PyTorchJob: `torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK`.
"""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from trainyard.frameworks.launch_command import reads_node_rank
from trainyard.frameworks.shared_settings import PYTHON, nccl_interfaces
from trainyard.frameworks.worker_spec import Json, Worker, command_line, threads_for_each

BASE_PORT, PORT_COUNT = 29500, 500
IDENTITY_VARIABLES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"}
    | {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_BACKEND"},
)
"""Variables of ranks and rendezvous. Set by the user they may not match the real group, which causes a warning."""
MAX_OMP_THREADS = 8
"""Of a rank with an accelerator, which computes there. Each thread of a loader or a checkpoint gets a pool of this size."""
MAX_COMPILE_PROCESSES = 32
"""Torch's own maximum. It counts the cores of the node, and not those of the container or of one rank."""
FLIGHT_RECORDER_VARIABLES = frozenset({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"})
"""The flight recorder's size, under its new and its old name. Some releases have it off by default. torch reads the new one first. A
user who sets one of them means both."""


def identity_variables(worker: Worker) -> list[Json]:
    """Return the variables of the worker's rank and of the rendezvous."""
    per_worker = worker.job.processes
    master_port = rendezvous_port(worker)
    variables: dict[str, str] = {
        "MASTER_ADDR": worker.master,
        "MASTER_PORT": str(master_port),
        "NODE_RANK": str(worker.group_rank),
        "PET_NNODES": _workers(worker),
        "PET_NPROC_PER_NODE": str(per_worker),
        "PET_NODE_RANK": str(worker.group_rank),
        "PET_MASTER_ADDR": worker.master,
        "PET_MASTER_PORT": str(master_port),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"[{worker.master}]:{master_port}"
        if ":" in worker.master
        else f"{worker.master}:{master_port}",
        "PET_RDZV_ID": worker.run_id,
        # Only worker 0 hosts the store: otherwise torchrun guesses from host names. The others wait for it as long as
        # for the rendezvous, since pulling its image may take minutes.
        "PET_RDZV_CONF": f"is_host={1 if worker.index == 0 else 0},join_timeout=900,read_timeout=900",
        # torchrun announces the worker by this address, and orders the ranks by it (as text). A pod's IP would do, but
        # with names worker 0 always has rank 0: its log is the one to read, and its failure takes the store along.
        "PET_LOCAL_ADDR": _sorted_address(worker),
        # The operator restarts the whole group, unless the job leaves restarts to torchrun.
        "PET_MAX_RESTARTS": str(worker.spec.recovery.max_restarts) if worker.job.uses_torchrun_rendezvous else "0",
    }
    if per_worker == 1 and not worker.job.uses_torchrun_rendezvous:
        variables |= {
            "RANK": str(worker.group_rank),
            "WORLD_SIZE": str(worker.workers),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }
    elif reads_node_rank(command_line(worker.spec.template["spec"]["containers"][0])):
        variables |= {"RANK": str(worker.group_rank), "WORLD_SIZE": str(worker.workers)}
    return [{"name": name, "value": value} for name, value in variables.items()]


def _sorted_address(worker: Worker) -> str:
    """Return the address by which torchrun sorts the workers. It connects to that of the first one alone, which is worker 0's own.

    Where the ranks follow the placement, the others are no addresses: the first one's, and what sorts them by rank.
    """
    if worker.index == 0 or not worker.job.status.has_placed_ranks:
        return worker.address
    return f"{worker.address_of(0)}~{worker.group_rank:05}"


def _workers(worker: Worker) -> str:
    elastic = worker.spec.elastic
    return (
        f"{elastic.lowest}:{elastic.highest}"
        if elastic and worker.job.uses_torchrun_rendezvous
        else str(worker.workers)
    )


def tuning_variables(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Return settings that are safe everywhere and that users otherwise discover during an incident.

    Settings that depend on the hardware are left to the user, the image and the platform's plugins, which know better.
    TORCHELASTIC_ERROR_FILE is not among them: torchrun removes the file before it writes it, which fails for the
    termination log, a mount. The OSError would then replace the rank's error.
    """
    variables = {
        **PYTHON,
        # 3 keeps the flight recorder's dump intact, which 1 (torchrun's choice) can lose: pytorch#121055.
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        # A shared store can hold keys of an earlier rendezvous: pytorch#135712.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "NCCL_DEBUG": "WARN",
    }
    if FLIGHT_RECORDER_VARIABLES.isdisjoint(variable["name"] for variable in container.get("env") or ()):
        variables |= dict.fromkeys(sorted(FLIGHT_RECORDER_VARIABLES), "2000")
    if (for_each := threads_for_each(worker, container)) is not None:
        variables["OMP_NUM_THREADS"] = str(min(MAX_OMP_THREADS, for_each) if worker.job.accelerators else for_each)
        variables["TORCHINDUCTOR_COMPILE_THREADS"] = str(min(MAX_COMPILE_PROCESSES, for_each))
    variables |= nccl_interfaces(worker)
    if worker.host_network:
        variables["NCCL_RAS_ADDR"] = f"localhost:{rendezvous_port(worker) + 1}"
    else:
        # The name that every CNI plugin gives to a pod's first interface.
        variables["GLOO_SOCKET_IFNAME"] = "eth0"
        variables["TP_SOCKET_IFNAME"] = "eth0"
    return [{"name": name, "value": value} for name, value in variables.items()]


def rendezvous_port(worker: Worker) -> int:
    """Return the port of the rendezvous and of rank 0's store, different in each attempt: no straggler of the last one
    joins.

    Jobs with `hostNetwork`, which share their nodes' ports, get ports derived from their UID.
    """
    if worker.host_network:
        return 20000 + 2 * ((crc32(worker.job.uid.encode()) + worker.rendezvous_attempt) % 5000)
    return BASE_PORT + (worker.rendezvous_attempt - 1) % PORT_COUNT
