"""PaddlePaddle: the endpoints and the ranks that `paddle.distributed.init_parallel_env()` and `paddle.distributed.launch` look for. Pure.

A program that the agent starts finds its rank in `PADDLE_TRAINER_ID`. With `python3 -m paddle.distributed.launch`, each worker runs one
launcher. The launchers meet at the first endpoint, and give their processes ranks and endpoints of their own. The names are those of Paddle
3.3 (`distributed/parallel.py`, `distributed/launch/context/args_envs.py`).
"""

from collections.abc import Mapping
from typing import Any

from trainyard.domain.state.accelerators import accelerators
from trainyard.frameworks.boosting import machine_port
from trainyard.frameworks.rank_numbers import RankNumber
from trainyard.frameworks.shared_settings import PYTHON, nccl_interfaces, thread_limit
from trainyard.frameworks.worker_spec import Json, Worker

RANKS: Mapping[str, RankNumber] = {
    "PADDLE_TRAINER_ID": RankNumber.RANK,
    "PADDLE_TRAINERS_NUM": RankNumber.WORLD_SIZE,
    "PADDLE_RANK_IN_NODE": RankNumber.LOCAL_RANK,
    "PADDLE_LOCAL_SIZE": RankNumber.LOCAL_WORLD_SIZE,
    "PADDLE_CURRENT_ENDPOINT": RankNumber.ENDPOINT,
    # Paddle for GPUs has no group without it. A process uses the first of its devices.
    "FLAGS_selected_gpus": RankNumber.DEVICES,
}
IDENTITY_VARIABLES = frozenset(
    {"PADDLE_MASTER", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_NNODES", "PADDLE_NPROC_PER_NODE", "PADDLE_RANK", "POD_IP"}
    | {"MASTER_ADDR", "MASTER_PORT"}
    | (RANKS.keys() - {"FLAGS_selected_gpus"})
)
"""Set by the user they may not match the real group, which causes a warning. Paddle prefers `MASTER_ADDR` to `PADDLE_MASTER`."""


def identity_variables(worker: Worker) -> list[Json]:
    """Return the endpoints of all ranks, and what the launcher asks for.

    Rank 0 listens at `PADDLE_MASTER`. Only static graphs use the other endpoints. The ports differ in each attempt.
    """
    first, processes = machine_port(worker), worker.job.processes
    addresses = [worker.address_of(index) for index in range(worker.workers)]
    endpoints = [f"{address}:{first + local}" for address in addresses for local in range(processes)]
    variables = {
        "PADDLE_MASTER": f"{worker.master}:{first}",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_JOB_ID": worker.run_id,
        "PADDLE_NNODES": str(worker.workers),
        "PADDLE_NPROC_PER_NODE": str(processes),
        "PADDLE_RANK": str(worker.index),
        # The launcher of worker 0 serves where its own address is that of the first endpoint, as text.
        "POD_IP": worker.address,
    }
    if processes == 1:
        variables["PADDLE_CURRENT_ENDPOINT"] = endpoints[worker.index]
    return [{"name": name, "value": value} for name, value in variables.items()]


def device_variables(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Return the backend of a container without accelerators: Paddle's default is another one, which cannot run on CPUs alone."""
    return (
        []
        if worker.job.accelerators or accelerators(container)
        else [{"name": "PADDLE_DISTRI_BACKEND", "value": "gloo"}]
    )


def tuning_variables(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Return settings that are safe everywhere. On GPUs, Paddle communicates by NCCL."""
    variables = {**PYTHON, "NCCL_DEBUG": "WARN"}
    variables |= thread_limit(worker, container) | nccl_interfaces(worker)
    return [{"name": name, "value": value} for name, value in variables.items()]
