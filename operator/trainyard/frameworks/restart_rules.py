"""Rules that make the kubelet restart a worker's container in its pod when the agent exits with a reserved code. Pure.

Kubernetes has two actions: restart the container itself (KEP-5307, enabled since 1.35), or restart all containers of
the pod (KEP-5532, enabled since 1.36).
"""

from collections.abc import Sequence
from copy import deepcopy
from enum import StrEnum

from trainyard.api.recovery import RESTART_CODE
from trainyard.frameworks.agent_wrapper import has_agent
from trainyard.frameworks.worker_spec import Json


class RestartAction(StrEnum):
    """What the kubelet restarts."""

    CONTAINER = "Restart"
    """The main container only."""
    ALL = "RestartAllContainers"
    """All containers of the pod, init containers included."""


def supported_actions(spec: Json) -> Sequence[RestartAction]:
    """Return the restart actions that a pod with this `spec` may use, best first; empty where no agent could ask for
    one.

    A sidecar, for example the daemon of a network plugin, may be what is broken: then all containers are restarted.
    """
    main = spec["containers"][0]
    has_coordinator = any(variable["name"] == "TRAINYARD_COORDINATOR" for variable in main.get("env") or ())
    if (
        spec.get("restartPolicy") == "OnFailure"
        or not has_coordinator
        or not has_agent(spec)
        or "restartPolicyRules" in main
        or "restartPolicy" in main
    ):
        # The user's own restart policy stays as it is. A member that goes on alone restarts after any error.
        return ()
    sidecars = any(c.get("restartPolicy") == "Always" for c in spec.get("initContainers") or ())
    has_others = sidecars or len(spec["containers"]) > 1
    return (RestartAction.ALL, RestartAction.CONTAINER) if has_others else (RestartAction.CONTAINER,)


def with_restart_rule(manifest: Json, action: RestartAction) -> Json:
    """Return the pod manifest with the restart rule."""
    changed = deepcopy(manifest)
    rule = {"action": action, "exitCodes": {"operator": "In", "values": [RESTART_CODE]}}
    changed["spec"]["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    return changed
