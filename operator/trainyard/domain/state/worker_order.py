"""Decide which worker has which ranks, once for each group: by the placement of the workers, where their agents wait for that. Pure."""

from trainyard.api.internal_status import WorkerOrder
from trainyard.api.status import StatusChanges
from trainyard.domain.state.snapshot import Snapshot


def awaits_order(snapshot: Snapshot) -> bool:
    """Return whether the workers of the group wait for their order, and all of them have a node, from which it follows.

    Each pod has an annotation if its agent waits. Without it on one of them, for example of an earlier release, ranks follow the index.
    """
    workers = snapshot.current_workers
    is_open = snapshot.job.status.internal.worker_order is None
    return is_open and bool(workers) and all(pod.ranks_ordered and pod.node for pod in workers)


def first_order(snapshot: Snapshot) -> StatusChanges:
    """Return the change that stores the order of a group that starts now; nothing where it has one, or its ranks follow the index."""
    if not awaits_order(snapshot):
        return {}
    order = [*snapshot.order_by_placement]
    is_whole = len(order) == snapshot.size.desired and order != sorted(order)
    return {"worker_order": WorkerOrder(workers=order if is_whole else [])}
