"""`status.workers`: the workers that are not healthy. `status.roles`: how many members of each role are ready."""

from pydantic import Field

from trainyard.api.base import MAX_JSON_INTEGER, Model


class WorkerStatus(Model):
    """A worker that is not healthy."""

    name: str
    """The pod's name."""
    node: str | None = None
    """The node to which the pod is bound."""
    state: str
    """Pending, Starting, Failed or Disrupted."""
    reason: str | None = None
    """The reason that the scheduler or the node reports, in one word."""
    message: str | None = None
    """The reason in a sentence."""


class RoleStatus(Model):
    """The members of a role."""

    name: str
    """The role; `worker` for those of `spec.replicas`."""
    replicas: int = Field(ge=0, le=MAX_JSON_INTEGER)
    """The desired number of members."""
    ready_replicas: int = Field(ge=0, le=MAX_JSON_INTEGER)
    """Members whose pod is ready, or has succeeded."""
    restarts: int = Field(default=0, ge=0, le=MAX_JSON_INTEGER)
    """How often their containers have restarted in their pods, where the members of the role restart alone."""
