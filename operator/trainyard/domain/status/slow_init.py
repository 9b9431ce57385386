"""Report an init container that keeps a pod from starting: one of the template, or one that a webhook has added. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta

from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_state import INIT_RUNNING
from trainyard.domain.state.worker_views import PodIssue, PodView

SLOW_INIT = timedelta(minutes=5)
"""How long an init container may run before an event reports it: many load data."""


def with_slow_init(snapshot: Snapshot, now: datetime) -> Snapshot:
    """Return the snapshot in which a slow init container is an issue of its pod."""
    if all(_time_left(pod, now) is None for pod in snapshot.pods):
        return snapshot
    return replace(snapshot, pods=[_with_issue(pod, now) for pod in snapshot.pods])


def slow_init_waits(snapshot: Snapshot, now: datetime) -> list[float]:
    """Return the seconds until each running init container counts as slow."""
    waits = (_time_left(pod, now) for pod in snapshot.current)
    return [wait.total_seconds() for wait in waits if wait is not None and wait > timedelta()]


def _with_issue(pod: PodView, now: datetime) -> PodView:
    left = _time_left(pod, now)
    if left is None or left > timedelta() or pod.issue:
        return pod
    words = f"init container {pod.init_container} has run since {pod.init_since:%H:%M:%S} UTC"
    return replace(pod, issue=PodIssue(INIT_RUNNING, f"{words}; the others wait for it"))


def _time_left(pod: PodView, now: datetime) -> timedelta | None:
    """Return how much longer the pod's init container may run; None where none runs."""
    return None if pod.init_since is None or pod.ended else SLOW_INIT - (now - pod.init_since)
