"""`status.suspectNodes`: the nodes that ended attempts, and how strictly a job avoids them."""

from enum import StrEnum

from pydantic import Field

from trainyard.api.base import MAX_JSON_INTEGER, Model, Time
from trainyard.api.internal_status import MAX_REASON_LENGTH

MAX_SUSPECT_NODES = 16
"""Nodes that a job remembers. If more of them fail, the nodes are not the cause."""


class Avoidance(StrEnum):
    """How strictly a job avoids a node."""

    NONE = "None"
    """The node was the cause once."""
    PREFERRED = "Preferred"
    """Workers run on the node only if no other node fits."""
    REQUIRED = "Required"
    """No worker runs on the node."""


class SuspectNode(Model):
    """A node that caused the failure of an attempt."""

    name: str = Field(max_length=253)
    """The node's name."""
    failures: int = Field(default=1, ge=1, le=MAX_JSON_INTEGER)
    """The number of attempts that failed because of the node."""
    avoidance: Avoidance = Avoidance.NONE
    """How strictly later attempts avoid the node: None, Preferred or Required."""
    reason: str = Field(default="", max_length=MAX_REASON_LENGTH)
    """The reason of the last failure."""
    until: Time
    """When the node is removed from the list."""
