"""Ray: how the agents of the head and of the workers start a cluster, and where the driver finds it. Pure.

The agent of each pod runs `ray start`. That of the head also runs the user's command, the driver, once all workers have joined. Ray makes
the ranks itself and gives them their numbers, so that no variable of ranks is set here: it would mislead Ray Train.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.api.roles import RoleName, member_index
from trainyard.domain.state.accelerators import gpus
from trainyard.domain.state.quantity import quantity
from trainyard.frameworks.shared_settings import PYTHON
from trainyard.frameworks.torch import rendezvous_port
from trainyard.frameworks.worker_spec import Json, Worker

IDENTITY_VARIABLES = frozenset({"RAY_ADDRESS", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"})
"""Set by the user they may not match the real group, which causes a warning."""
LOOPBACK = "127.0.0.1"
HEAD_INDEX = member_index(RoleName.HEAD, 0)
EXIT_SECONDS = 10
"""The part of the grace period, a third of it at most, in which Ray's processes exit after their node was drained."""


def identity_variables(worker: Worker) -> list[Json]:
    """Return the address of the head, the options of `ray start`, and the number of workers for which the driver waits.

    The port of the head differs in each attempt, so that no worker of the last one joins.
    """
    port = rendezvous_port(worker)
    address = f"{worker.address_of(HEAD_INDEX)}:{port}"
    main: Mapping[str, Any] = worker.spec.template["spec"]["containers"][0]
    if worker.index == HEAD_INDEX:
        # All that reach the dashboard can run any program. The driver and Ray's servers need the head's processors: ranks would starve them.
        options = ["--head", f"--port={port}", "--include-dashboard=false", "--num-cpus=0"]
    else:
        options = [f"--address={address}", *_resources(main)]
    variables = {
        # On the head its name may not resolve yet.
        "RAY_ADDRESS": f"{LOOPBACK}:{port}" if worker.index == HEAD_INDEX else address,
        "TRAINYARD_RAY_START": " ".join(options),
        "TRAINYARD_RAY_WORKERS": str(worker.workers),
    }
    return [{"name": name, "value": value} for name, value in variables.items()]


def tuning_variables(worker: Worker, _container: Mapping[str, Any]) -> list[Json]:
    """Return settings that are safe everywhere.

    Ray would send reports of its use to its authors. It would drain the node of a deleted pod for 30 seconds, the default grace period.
    Then it would be killed before it reports its end, and the driver would notice that late.
    """
    grace = worker.spec.grace_seconds
    drain = max(grace - EXIT_SECONDS, 2 * grace // 3)
    variables = {**PYTHON, "RAY_USAGE_STATS_ENABLED": "0", "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(drain)}
    return [{"name": name, "value": value} for name, value in variables.items()]


def _resources(container: Mapping[str, Any]) -> list[str]:
    """Return what a worker offers to Ray, which would count the processors of the node. Without a limit or a request it does."""
    resources: Mapping[str, Any] = container.get("resources") or {}
    given = (resources.get("limits") or {}).get("cpu") or (resources.get("requests") or {}).get("cpu")
    processors = quantity(given)
    options = [] if processors is None else [f"--num-cpus={max(1, int(processors))}"]
    if number := gpus(container):
        options.append(f"--num-gpus={number}")
    return options
