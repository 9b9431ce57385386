"""TensorFlow: `TF_CONFIG`, which names all members of the group and the member itself. Pure.

The contract is that of `TFConfigClusterResolver` (tensorflow 2.21). All members have the same lists in the same order. The evaluator
takes no part in the training, so that it is not in the cluster of the others.
"""

import json
from collections.abc import Mapping
from typing import Any

from trainyard.api.constants import ROLE_WORKER
from trainyard.api.roles import RoleName
from trainyard.frameworks.shared_settings import PYTHON
from trainyard.frameworks.torch import rendezvous_port
from trainyard.frameworks.worker_spec import Json, Worker, threads_for_each

IDENTITY_VARIABLES = frozenset({"TF_CONFIG"})
"""Set by the user it may not match the real group, which causes a warning."""


def identity_variables(worker: Worker) -> list[Json]:
    """Return `TF_CONFIG`; nothing for a worker that is alone, which trains without a cluster.

    The port differs in each attempt, so that no member of the last one takes part.
    """
    members = worker.members
    if len(members) == 1:
        return []
    port = rendezvous_port(worker)
    cluster: dict[str, list[str]] = {}
    for index in members:
        if (role := worker.role_of(index)) != RoleName.EVALUATOR:
            cluster.setdefault(role, []).append(f"{worker.address_of(index)}:{port}")
    order = [name for name in (RoleName.CHIEF, RoleName.PS, ROLE_WORKER) if name in cluster]
    config = {
        "cluster": {name: cluster[name] for name in order},
        "task": {"type": worker.role, "index": worker.number},
    }
    return [{"name": "TF_CONFIG", "value": json.dumps(config, separators=(",", ":"))}]


def tuning_variables(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Return settings that are safe everywhere. TensorFlow counts the cores of the node, and not those of the container.

    Two operations run at once even on one CPU: with one, parameter servers and workers wait for each other for ever.
    """
    variables = {**PYTHON, "TF_CPP_MIN_LOG_LEVEL": "1"}
    if (threads := threads_for_each(worker, container)) is not None:
        variables |= {"TF_NUM_INTRAOP_THREADS": str(threads), "TF_NUM_INTEROP_THREADS": "2"}
    return [{"name": name, "value": value} for name, value in variables.items()]
