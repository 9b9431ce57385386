"""`status.workers`: the workers that are not healthy."""

from trainyard.api.base import Model


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
