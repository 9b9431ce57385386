"""XGBoost and LightGBM: the environment of their ranks. Pure.

XGBoost: the program of rank 0 starts the tracker, and all ranks connect to it. LightGBM: each rank connects to all others, by a list of
IP addresses, which are known once all workers run. Neither library reads a variable by itself: programs pass them on. Besides the names
that each library uses, there are those of Kubeflow's XGBoostJob and Trainer, so that programs written for these run unchanged.
"""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from trainyard.frameworks.shared_settings import PYTHON, thread_limit
from trainyard.frameworks.torch import rendezvous_port
from trainyard.frameworks.worker_spec import Json, Worker

RANKS = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
XGBOOST_RESERVED = RANKS | {"DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID", "DMLC_NUM_WORKER"}
LIGHTGBM_RESERVED = RANKS | {"LIGHTGBM_MACHINES", "WORKER_ADDRS", "WORKER_PORT"}
"""Variables of ranks and addresses. Set by the user they may not match the real group, which causes a warning."""
BASE_PORT, PORT_COUNT = 12400, 2000
"""LightGBM's own port, and how many there are from it."""
HOST_BASE_PORT, HOST_PORT_COUNT = 20000, 10000
"""The same for jobs with `hostNetwork`."""
LOOPBACK = "127.0.0.1"
"""The address of a single worker."""


def xgboost_variables(worker: Worker) -> list[Json]:
    """Return the address of the tracker, which rank 0 starts there. The port differs in each attempt: the last one's may still be in use."""
    port = str(rendezvous_port(worker))
    variables = {
        "DMLC_TRACKER_URI": worker.master,
        "DMLC_TRACKER_PORT": port,
        "MASTER_ADDR": worker.master,
        "MASTER_PORT": port,
    }
    return [{"name": name, "value": value} for name, value in variables.items()]


def lightgbm_variables(worker: Worker) -> list[Json]:
    """Return the addresses of all ranks, by rank: `LIGHTGBM_MACHINES` is the library's parameter `machines`.

    The process with local rank n listens on port `WORKER_PORT` + n. Until all workers run, a worker knows only its port.
    """
    first, processes = machine_port(worker), worker.job.processes
    addresses = [LOOPBACK] if worker.workers == 1 else worker.addresses
    variables = {"WORKER_PORT": str(first), "MASTER_PORT": str(first)}
    if addresses:
        machines = (f"{address}:{first + local}" for address in addresses for local in range(processes))
        variables |= {
            "MASTER_ADDR": addresses[0],
            "WORKER_ADDRS": ",".join(addresses[1:]),
            "LIGHTGBM_MACHINES": ",".join(machines),
        }
    return [{"name": name, "value": value} for name, value in variables.items()]


def machine_port(worker: Worker) -> int:
    """Return the port of a worker's first process. No two attempts in a row share a port: the system holds a closed one for a minute."""
    used = (worker.attempt - 1) * worker.job.processes
    if worker.host_network:
        return HOST_BASE_PORT + (crc32(worker.job.uid.encode()) + used) % HOST_PORT_COUNT
    return BASE_PORT + used % PORT_COUNT


def tuning_variables(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Return settings that are safe everywhere. Both libraries would use all cores of the node."""
    variables = {**PYTHON, **thread_limit(worker, container)}
    return [{"name": name, "value": value} for name, value in variables.items()]
