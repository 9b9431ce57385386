"""Find launchers that get no place of the worker, so that each worker starts a group of its own. Pure.

The agent adds it to `accelerate launch`, `fabric run` and `tune run` (its module `launchers`), but not where a shell starts them. Without the
agent, accelerate and tune still find the group in `PET_*`, as torchrun does. `fabric run` does not.
"""

import re
from posixpath import basename

from trainyard.frameworks.launch_command import SHELLS
from trainyard.frameworks.worker_spec import Worker, command_line

FABRIC = re.compile(r"\b(fabric\s+run|lightning\s+run\s+model|lightning[._]fabric\.cli)\b")
NUMBER_OF_NODES = re.compile(r"--num[-_]nodes\b")


def unplaced_launcher(worker: Worker, *, has_agent: bool) -> str:
    """Return what to change in a command of which each worker would be a group of its own; empty where that is not known."""
    main = worker.spec.template["spec"]["containers"][0]
    command = command_line(main)
    found = FABRIC.search(" ".join(command))
    if worker.workers == 1 or not worker.spec.framework.forms_torch_group or found is None:
        return ""
    is_placed = has_agent and worker.job.wants_agent and main.get("command") and basename(command[0]) not in SHELLS
    if is_placed or NUMBER_OF_NODES.search(" ".join(command)):
        return ""
    processes = worker.job.processes
    return (
        f"{found[1]} starts a group of its own in each of the {worker.workers} workers: make it the command itself, without a"
        f" shell, or add --devices={processes} --num-nodes=$PET_NNODES --node-rank=$NODE_RANK --main-address=$MASTER_ADDR"
        " --main-port=$MASTER_PORT"
    )
