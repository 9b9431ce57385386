"""Horovod without MPI: its controller gloo, whose ranks meet at a store. Pure.

The agent of worker 0 serves the store (`trainyard_agent/horovod_store.py`), as `horovodrun` would. The variables are those of horovod 0.28
(`runner/gloo_run.py`). Ranks of a job that starts them by `mpirun` are those of the framework mpi.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainyard.frameworks import torch
from trainyard.frameworks.boosting import LOOPBACK
from trainyard.frameworks.rank_numbers import RankNumber
from trainyard.frameworks.worker_spec import Json, Worker

RANKS: Mapping[str, RankNumber] = MappingProxyType(
    {
        "HOROVOD_RANK": RankNumber.RANK,
        "HOROVOD_SIZE": RankNumber.WORLD_SIZE,
        "HOROVOD_LOCAL_RANK": RankNumber.LOCAL_RANK,
        "HOROVOD_LOCAL_SIZE": RankNumber.LOCAL_WORLD_SIZE,
        "HOROVOD_CROSS_RANK": RankNumber.WORKER,
        "HOROVOD_CROSS_SIZE": RankNumber.WORKERS,
    }
)
"""Cross: among the processes with the same local rank."""
RESERVED = frozenset(
    {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"}
    | {"HOROVOD_HOSTNAME", "HOROVOD_ELASTIC", *RANKS}
)
"""Variables of ranks and the rendezvous. Set by the user they may not match the real group, which causes a warning."""


def identity_variables(worker: Worker) -> list[Json]:
    """Return where the ranks meet, once all workers run. The port differs in each attempt: no rank of the last one joins.

    The address is no name: Horovod gives up on one that does not resolve after a second.
    """
    variables = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_HOSTNAME": worker.host}
    addresses = [LOOPBACK] if worker.workers == 1 else worker.addresses
    if addresses:
        port = str(torch.rendezvous_port(worker))
        variables |= {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": addresses[0],
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "TRAINYARD_HOROVOD_RENDEZVOUS": f"{addresses[0]}:{port}",
        }
    return [{"name": name, "value": value} for name, value in variables.items()]


def tuning_variables(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Return those of torch, and the interface of the pod: without a name, gloo asks DNS for the address of the host."""
    variables = torch.tuning_variables(worker, container)
    if not worker.host_network and worker.workers > 1:
        variables.append({"name": "HOROVOD_GLOO_IFACE", "value": "eth0"})
    return variables
