"""What has a node start a worker's container anew in its pod: a rule for the exit code with which the agent asks for it. Pure.

Kubernetes has two: one for the container itself (KEP-5307, on since 1.35), and one for all containers of its pod (KEP-5532, on since 1.36).
"""

from collections.abc import Sequence
from copy import deepcopy
from enum import StrEnum

from trainyard.api.recovery import RESTART_CODE
from trainyard.frameworks.agent_wrapper import has_agent
from trainyard.frameworks.worker_spec import Json


class Restarting(StrEnum):
    """What starts anew."""

    CONTAINER = "Restart"
    """The main container alone."""
    ALL = "RestartAllContainers"
    """All containers of the pod, those too that run before the others."""


def suitable(spec: Json) -> Sequence[Restarting]:
    """What may start anew in a pod with this `spec`, the best first; nothing where no agent could ask for it.

    A network's daemon, say, that runs beside the main container may be what is broken: where there is such a one, all start anew.
    """
    main = spec["containers"][0]
    told = any(variable["name"] == "TRAINYARD_COORDINATOR" for variable in main.get("env") or ())
    if not told or not has_agent(spec) or "restartPolicyRules" in main or "restartPolicy" in main:
        # What the user has said of restarts stays as it is.
        return ()
    sidecars = any(each.get("restartPolicy") == "Always" for each in spec.get("initContainers") or ())
    beside = sidecars or len(spec["containers"]) > 1
    return (Restarting.ALL, Restarting.CONTAINER) if beside else (Restarting.CONTAINER,)


def with_rule(manifest: Json, what: Restarting) -> Json:
    """The pod, with the rule."""
    made = deepcopy(manifest)
    rule = {"action": what, "exitCodes": {"operator": "In", "values": [RESTART_CODE]}}
    made["spec"]["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    return made
