"""Delete pods by force that only a lost node could terminate. Pure.

Until then they count against quotas, keep their names and their attached volumes, and are listed as Terminating. Their ranks may
still run after that; docs/design/0012-restart-scopes.md explains why this is harmless.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from trainyard.domain.actions import RemovePod
from trainyard.domain.state.snapshot import PodView, Snapshot

TRY_AGAIN = 60.0
"""Seconds until a pod that still exists is checked again."""


def removals(snapshot: Snapshot, unused: Iterable[PodView], now: datetime) -> tuple[list[RemovePod], list[float]]:
    """Return the removals of unused pods that are due now, and the seconds until each next one."""
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
        note = f"pod {pod.name} is deleted by force: node {pod.node} is unreachable, and the grace period ended at {pod.deletion_time:%H:%M:%S} UTC"
        actions.append(RemovePod(pod.name, pod.uid, note))
    return actions, waits


def _agent_connected(snapshot: Snapshot, pod: PodView) -> bool:
    """Return whether the pod's agent is connected: then the worker runs, and only the control plane does not reach its node."""
    agent = snapshot.agents.get(pod.uid)
    return agent is not None and agent.connected
