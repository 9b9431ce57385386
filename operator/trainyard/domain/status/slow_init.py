"""Report an init container that keeps a pod from starting: one of the template, or one that a webhook has added. Pure."""

from dataclasses import replace
from datetime import datetime

from trainyard.domain.state.group_health import INIT_RUNNING
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodIssue, PodView


def with_slow_init(snapshot: Snapshot, now: datetime) -> Snapshot:
    """Return the snapshot in which a slow init container is an issue of its pod."""
    if all(pod.slow_init_at is None for pod in snapshot.pods):
        return snapshot
    return replace(snapshot, pods=[_with_issue(pod, now) for pod in snapshot.pods])


def _with_issue(pod: PodView, now: datetime) -> PodView:
    if pod.slow_init_at is None or pod.slow_init_at > now or pod.issue:
        return pod
    words = f"init container {pod.init_container} has run since {pod.init_since:%H:%M:%S} UTC"
    return replace(pod, issue=PodIssue(INIT_RUNNING, f"{words}; the others wait for it"))
