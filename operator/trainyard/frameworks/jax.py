"""JAX: the environment in which `jax.distributed.initialize()` finds everything without arguments.

JAX takes the size of the group and the number of a process from arguments, or from a cluster that it detects. Slurm's variables describe
any group, on all devices, and JAX looks for them before it asks a cloud or the API server (docs/design/0046-jax.md). Programs that pass
arguments find the names that Kubeflow's operators set.
"""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from trainyard.domain.state.accelerators import TPU, requested
from trainyard.frameworks.rank_numbers import RankNumber
from trainyard.frameworks.shared_settings import PYTHON, nccl_interfaces
from trainyard.frameworks.torch import rendezvous_port
from trainyard.frameworks.worker_spec import Json, Worker

RANKS: Mapping[str, RankNumber] = {
    "SLURM_PROCID": RankNumber.RANK,
    "SLURM_NTASKS": RankNumber.WORLD_SIZE,
    "SLURM_LOCALID": RankNumber.LOCAL_RANK,
    "JAX_PROCESS_ID": RankNumber.RANK,
    "JAX_NUM_PROCESSES": RankNumber.WORLD_SIZE,
    "PROCESS_ID": RankNumber.RANK,
    "NUM_PROCESSES": RankNumber.WORLD_SIZE,
    # Without it JAX takes one device of the number SLURM_LOCALID, however many there are.
    "JAX_LOCAL_DEVICE_IDS": RankNumber.DEVICES,
}
SLICES = "MEGASCALE_NUM_SLICES"
"""The user sets it for a group of several TPU slices. The operator adds the place of each worker."""
TPU_VARIABLES = frozenset({"TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_NAME"})
MEGASCALE_VARIABLES = frozenset({"MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_SLICE_ID"})
IDENTITY_VARIABLES = frozenset(
    {"JAX_COORDINATOR_ADDRESS", "COORDINATOR_ADDRESS", "COORDINATOR_PORT", "SLURM_JOB_ID", "SLURM_STEP_NODELIST"}
    | (RANKS.keys() - {"JAX_LOCAL_DEVICE_IDS"})
    | TPU_VARIABLES
    | MEGASCALE_VARIABLES
)
"""Set by the user they may not match the real group, which causes a warning."""


def identity_variables(worker: Worker) -> list[Json]:
    """Return the address of the coordinator, which process 0 runs, and the variables by which JAX detects the group."""
    port = rendezvous_port(worker)
    host = f"[{worker.master}]" if ":" in worker.master else worker.master
    variables = {
        "JAX_COORDINATOR_ADDRESS": f"{host}:{port}",
        "COORDINATOR_ADDRESS": worker.master,
        "COORDINATOR_PORT": str(port),
        # A number, as Slurm's own. JAX derives a port from it where the user has removed the coordinator's address.
        "SLURM_JOB_ID": str(crc32(worker.run_id.encode())),
        "SLURM_STEP_NODELIST": worker.master,
    }
    return [{"name": name, "value": value} for name, value in variables.items()]


def device_variables(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Return the place of the worker in its TPU slice, for a container that requests TPUs.

    Workers of several slices follow each other: the first ones form slice 0. A number of slices that does not divide the workers is
    ignored here. MEGASCALE_* are not set for a single slice: libtpu reads them, and JAX, which detects Slurm, does not.
    """
    if not requested(container, TPU):
        return []
    slices = _slices(worker, container)
    hosts = worker.workers // slices
    own = worker.index // hosts
    variables = {
        "TPU_WORKER_ID": str(worker.index % hosts),
        "TPU_WORKER_HOSTNAMES": ",".join(worker.address_of(own * hosts + number) for number in range(hosts)),
        "TPU_NAME": worker.job.name,
    }
    if slices > 1:
        variables |= {"MEGASCALE_COORDINATOR_ADDRESS": worker.master, "MEGASCALE_SLICE_ID": str(own)}
    return [{"name": name, "value": value} for name, value in variables.items()]


def tuning_variables(worker: Worker, _container: Mapping[str, Any]) -> list[Json]:
    """Return settings that are safe everywhere. On GPUs, JAX communicates by NCCL."""
    variables = {**PYTHON, "NCCL_DEBUG": "WARN"}
    variables |= nccl_interfaces(worker)
    return [{"name": name, "value": value} for name, value in variables.items()]


def _slices(worker: Worker, container: Mapping[str, Any]) -> int:
    """Return the number of TPU slices that the user has set, if it divides the workers; else 1."""
    given = [variable.get("value") or "" for variable in container.get("env") or () if variable["name"] == SLICES]
    slices = int(given[-1]) if given and given[-1].isascii() and given[-1].isdecimal() else 1
    return slices if slices > 0 and worker.workers % slices == 0 else 1
