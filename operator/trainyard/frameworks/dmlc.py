"""The parameter server of DMLC (ps-lite), as MXNet and BytePS use it: the role of each member, and the address of the scheduler. Pure.

All members know the scheduler alone, which sends them the addresses of all others. The names are those of ps-lite (`DMLC_*`, MXNet 1.9) and
of BytePS 0.2, whose launcher starts the processes of a worker.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.api.constants import ROLE_WORKER
from trainyard.api.roles import RoleName, member_index
from trainyard.frameworks.shared_settings import PYTHON, thread_limit
from trainyard.frameworks.torch import rendezvous_port
from trainyard.frameworks.worker_spec import Json, Worker

IDENTITY_VARIABLES = frozenset(
    {"DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID"}
)
"""Set by the user they may not match the real group, which causes a warning."""


def identity_variables(worker: Worker) -> list[Json]:
    """Return the role of the member, the numbers of all roles, and the address of the scheduler.

    The port differs in each attempt, so that no member of the last one takes part. Members get their ranks of
    ps-lite, in the order in which they arrive. BytePS asks for `DMLC_WORKER_ID`.
    """
    servers = sum(role.replicas for role in worker.spec.roles if role.name is RoleName.SERVER)
    variables = {
        "DMLC_ROLE": worker.role,
        "DMLC_PS_ROOT_URI": worker.address_of(member_index(RoleName.SCHEDULER, 0)),
        "DMLC_PS_ROOT_PORT": str(rendezvous_port(worker)),
        "DMLC_NUM_WORKER": str(worker.workers),
        "DMLC_NUM_SERVER": str(servers),
        # The scheduler listens on all addresses. It cannot listen on a name.
        "DMLC_USE_KUBERNETES": "1",
    }
    if worker.role == ROLE_WORKER:
        variables["DMLC_WORKER_ID"] = str(worker.index)
    return [{"name": name, "value": value} for name, value in variables.items()]


def tuning_variables(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Return settings that are safe everywhere. The engine of MXNet would use all cores of the node."""
    variables = {**PYTHON, **thread_limit(worker, container)}
    return [{"name": name, "value": value} for name, value in variables.items()]
