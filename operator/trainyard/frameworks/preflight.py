"""Whether the workers of an attempt compare their nodes before training: in each attempt that may run on a node for the first time. Pure.

All workers find the same answer, since it follows from the status alone.
"""

from trainyard.api.health import Preflight
from trainyard.api.status import TrainingJobStatus
from trainyard.frameworks.worker_spec import Worker

PREFLIGHT = "TRAINYARD_PREFLIGHT"
"""How much the agent measures; not set, or empty: nothing."""


def preflight_variables(worker: Worker) -> dict[str, str]:
    """Return the variable that has the agent of this worker take part in the comparison, if there is one."""
    mode, status = worker.spec.health.preflight, worker.job.status
    if mode is Preflight.NONE or not (_has_new_pods(status) or _suspects_node(status)):
        return {}
    return {PREFLIGHT: str(mode)}


def _has_new_pods(status: TrainingJobStatus) -> bool:
    """Return whether a pod was created for the current attempt, which may have a node that no attempt has used."""
    group = status.internal.group
    if group is None or group.created_in_attempt >= status.attempt:
        return True
    return any(each.attempt >= status.attempt for each in group.replacements)


def _suspects_node(status: TrainingJobStatus) -> bool:
    """Return whether the last failure came from its node, as far as anybody knows."""
    last = status.last_failure
    return last is not None and any(node.name == last.node for node in status.suspect_nodes)
