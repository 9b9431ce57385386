"""`spec.health`: what is tested of nodes before they train."""

from enum import StrEnum
from typing import Any

from trainyard.api.base import Model, rule


class Preflight(StrEnum):
    """How much is measured before training starts on new nodes."""

    NONE = "none"
    QUICK = "quick"
    FULL = "full"


class Health(Model):
    """What is tested of nodes before they train."""

    preflight: Preflight = Preflight.NONE
    """Whether the workers compare their nodes before the ranks start: each rank computes a matrix product and exchanges data with ranks of
    other workers. A worker that is far slower than its group exits with code 94 and moves to another node. Attempts with a new pod do it,
    and those after a failure of a node. With quick, each exchanges data with 7 other workers, in a few seconds; with full with 63, in up
    to 20 seconds. The image needs torch. See docs/node-health.md."""


def health_rules() -> list[dict[str, Any]]:
    """Return the rules of the CRD for `spec.health`."""
    compares = "has(self.health) && has(self.health.preflight) && self.health.preflight != 'none'"
    return [
        rule(
            f"!({compares}) || self.framework in ['torch', 'deepspeed', 'megatron']",
            "preflight compares nodes with torch.distributed: framework must be torch, deepspeed or megatron; leave health out",
            fieldPath=".health.preflight",
        ),
        rule(
            f"!({compares}) || (self.recovery.agent != 'none' && self.recovery.avoidNodes)",
            "preflight is run by the agent and moves workers to other nodes; leave recovery.agent and recovery.avoidNodes out",
            fieldPath=".health.preflight",
        ),
    ]
