"""When pods that only a lost node could end are taken out of the API by force. Pure.

Until then they count against quotas, keep their names and the volumes that are attached for them, and stand in every list as
Terminating. What may go on in such a pod after that, and why it harms nobody, is in docs/design/0012-restart-scopes.md.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from trainyard.domain.actions import RemovePod
from trainyard.domain.state.snapshot import PodView, Snapshot

TRY_AGAIN = 60.0
"""Seconds until a pod that is still there is looked at again."""


def removals(snapshot: Snapshot, unused: Iterable[PodView], now: datetime) -> tuple[list[RemovePod], list[float]]:
    """Which of the pods that nobody uses any more to remove now, and the seconds until there is more to do."""
    after = snapshot.job.spec.recovery.force_delete_after_seconds
    actions: list[RemovePod] = []
    waits: list[float] = []
    for pod in unused if after else ():
        if pod.deletion_time is None or pod.node_lost_at is None or pod.removed:
            continue
        left = (max(pod.deletion_time, pod.node_lost_at) - now) + timedelta(seconds=after)
        if left > timedelta(0):
            waits.append(left.total_seconds())
            continue
        waits.append(TRY_AGAIN)
        if _agent_connected(snapshot, pod):
            continue
        note = f"pod {pod.name} is deleted by force: nothing is heard of node {pod.node}, and it was to end by {pod.deletion_time:%H:%M:%S} UTC"
        actions.append(RemovePod(pod.name, pod.uid, note))
    return actions, waits


def _agent_connected(snapshot: Snapshot, pod: PodView) -> bool:
    """Whether its agent calls: it is the control plane that does not hear of the node, and the worker is there."""
    agent = snapshot.agents.get(pod.uid)
    return agent is not None and agent.connected
