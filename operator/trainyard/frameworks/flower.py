"""Flower: how the agents of the server and of the clients start a federation. Pure.

The agent of the server runs the SuperLink, and beside it the user's command, which starts a run. The agents of the clients, which are the
workers, run SuperNodes. No variable of ranks is set: clients train each for itself.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.api.roles import RoleName, member_index
from trainyard.frameworks.shared_settings import PYTHON
from trainyard.frameworks.torch import rendezvous_port
from trainyard.frameworks.worker_spec import Json, Worker

IDENTITY_VARIABLES = frozenset({"FLWR_HOME", "TRAINYARD_FLOWER_START"})
"""Set by the user they may lead to another SuperLink, which causes a warning."""
SERVER_INDEX = member_index(RoleName.SERVER, 0)


def identity_variables(worker: Worker) -> list[Json]:
    """Return the command line of the SuperLink or of the SuperNode, the place of a client, and the number of clients.

    The port of the server differs in each attempt, so that no client of the last one joins.
    """
    port = rendezvous_port(worker)
    variables = {"TRAINYARD_FLOWER_CLIENTS": str(worker.workers)}
    if worker.index == SERVER_INDEX:
        variables["TRAINYARD_FLOWER_START"] = f"flower-superlink --port={port}"
    else:
        variables["TRAINYARD_FLOWER_START"] = f"flower-supernode --superlink={worker.address_of(SERVER_INDEX)}:{port}"
        # The names are those that Flower's own examples read.
        place = f"partition-id={worker.number} num-partitions={worker.workers}"
        variables["TRAINYARD_FLOWER_NODE_CONFIG"] = place
    return [{"name": name, "value": value} for name, value in variables.items()]


def tuning_variables(_worker: Worker, _container: Mapping[str, Any]) -> list[Json]:
    """Return settings that are safe everywhere. Flower would report its use, look for updates, and install packages while it runs."""
    variables = {
        **PYTHON,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    return [{"name": name, "value": value} for name, value in variables.items()]
