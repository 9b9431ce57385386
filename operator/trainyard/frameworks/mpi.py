"""MPI: what the agents need so that a launcher in worker 0 starts daemons in the other workers. Pure.

The agents write the files of hosts and set the variables of launchers themselves (`trainyard_agent/mpi.py`): only they know where these
files are. Each MPI has its own names for the ranks, which its daemons set.
"""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from trainyard.frameworks.boosting import HOST_BASE_PORT, HOST_PORT_COUNT
from trainyard.frameworks.shared_settings import PYTHON, thread_limit
from trainyard.frameworks.worker_spec import Json, Worker

PORT = 29600
"""Where agents listen for launchers, below the ports that Linux gives to clients."""
INDEX_FIELD = "{index}"
HOSTS = frozenset(
    {"PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"}
)
REMOTE_STARTS = frozenset(
    {"PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent", "HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC"}
    | {"I_MPI_HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP_EXEC"}
)
SCHEDULERS = frozenset(
    {
        "SLURM_JOB_ID",
        "SLURM_JOBID",
        "SLURM_NODELIST",
        "SLURM_JOB_NODELIST",
        "SLURM_NTASKS",
        "SLURM_PROCID",
        "SLURM_NPROCS",
    }
    | {"PBS_JOBID", "PBS_NODEFILE", "LSB_JOBID", "LSB_HOSTS", "PE_HOSTFILE"}
)
"""Variables by which launchers believe that a batch scheduler has given them hosts."""
RESERVED = HOSTS | REMOTE_STARTS | SCHEDULERS


def identity_variables(worker: Worker) -> list[Json]:
    """Return the name and the port by which agents reach each other; their addresses once all workers run."""
    variables = {"TRAINYARD_WORKER_NAME": worker_name(worker), "TRAINYARD_REMOTE_START_PORT": str(port(worker))}
    if worker.addresses:
        variables["TRAINYARD_WORKER_ADDRESSES"] = ",".join(worker.addresses)
    return [{"name": name, "value": value} for name, value in variables.items()]


def worker_name(worker: Worker) -> str:
    """Return the DNS name of the workers, with a field for the index: a list of all names would be long."""
    name, index = worker.address, str(worker.index)
    host, dot, service = name.partition(".")
    return f"{host.removesuffix(index)}{INDEX_FIELD}{dot}{service}"


def port(worker: Worker) -> int:
    """Return the port of the agents. On the nodes' network, jobs have different ones."""
    if worker.host_network:
        return HOST_BASE_PORT + crc32(worker.job.uid.encode()) % HOST_PORT_COUNT
    return PORT


def tuning_variables(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Return settings that are safe everywhere.

    Open MPI binds ranks to cores, counted from the first one of the node: ranks of several pods would share it. It notices a lost node
    after eight minutes, and refuses to run as root without two variables.
    """
    variables = {
        **PYTHON,
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "I_MPI_PIN": "0",
        "PRTE_MCA_oob_tcp_keepalive_time": "10",
        "PRTE_MCA_oob_tcp_keepalive_intvl": "5",
        "PRTE_MCA_oob_tcp_keepalive_probes": "3",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    variables |= thread_limit(worker, container)
    return [{"name": name, "value": value} for name, value in variables.items()]
