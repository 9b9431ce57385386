"""Settings that are the same in several frameworks. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trainyard.frameworks.worker_spec import Worker, threads_for_each

PYTHON: Mapping[str, str] = MappingProxyType({"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"})
"""Output appears at once, and a fatal signal leaves a traceback."""


def thread_limit(worker: Worker, container: Mapping[str, Any]) -> dict[str, str]:
    """Return the OpenMP threads of each process; nothing where the CPUs of the container are unknown."""
    threads = threads_for_each(worker, container)
    return {} if threads is None else {"OMP_NUM_THREADS": str(threads)}


def nccl_interfaces(worker: Worker) -> dict[str, str]:
    """Return the interfaces that NCCL must not choose: a node has bridges and virtual interfaces without a route to its peers."""
    return {"NCCL_SOCKET_IFNAME": "^lo,docker,veth,cni,cali,flannel,kube,virbr"} if worker.host_network else {}
