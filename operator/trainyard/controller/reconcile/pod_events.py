"""Read why a pod does not start where only its events tell: a volume that cannot be mounted, a network that is not ready.

It gathers facts for the snapshot and decides nothing. Of a group, one pod is asked for at a time, and seldom: the server looks through
all events of the namespace.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trainyard.domain.state.group_health import START_EVENTS, waits_silently
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.worker_views import PodIssue, PodView
from trainyard.kube.errors import ApiError
from trainyard.kube.resource import EVENTS
from trainyard.kube.session import Session

_LOG = logging.getLogger(__name__)

FIRST_READ_SECONDS = 15.0
"""How long a pod may start before its events are read: most need no reason."""
READ_AGAIN_SECONDS = 60.0
MAX_EVENTS = 50
PROGRESS_EVENTS = frozenset({"Pulling", "Pulled", "Created", "Started"})
"""The reasons of events after which the volumes and the network of a pod are there."""
FOLLOW_UP = "Unable to attach or mount volumes"
"""How the kubelet repeats that a mount has failed, without the reason."""


@dataclass(slots=True)
class _Reading:
    """What is known of one pod."""

    pod: str
    due: float
    issue: PodIssue | None = None


@dataclass(slots=True)
class PodEvents:
    """The last reading of each job that has a pod which does not start."""

    session: Session
    clock: Callable[[], float]
    _readings: dict[str, _Reading] = field(default_factory=dict, init=False)

    async def explain(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the issue that events report of the first pod that waits without a reason."""
        uid = snapshot.job.uid
        pod = next(filter(waits_silently, snapshot.current), None)
        if pod is None or snapshot.job.status.finished:
            self._readings.pop(uid, None)
            return snapshot
        reading = self._readings.get(uid)
        if reading is None or reading.pod != pod.uid:
            reading = self._readings[uid] = _Reading(pod.uid, self.clock() + FIRST_READ_SECONDS)
        if self.clock() >= reading.due:
            reading.due = self.clock() + READ_AGAIN_SECONDS
            reading.issue = await self._read(pod)
        if reading.issue is None:
            return snapshot
        pods = [replace(each, issue=reading.issue) if each.uid == pod.uid else each for each in snapshot.pods]
        return replace(snapshot, pods=pods)

    def wait(self, uid: str) -> float | None:
        """Return the seconds until the events of a pod of this job are due; None where none waits."""
        reading = self._readings.get(uid)
        return None if reading is None else max(0.0, reading.due - self.clock())

    def forget(self, uid: str) -> None:
        """Forget a job that is gone."""
        self._readings.pop(uid, None)

    async def _read(self, pod: PodView) -> PodIssue | None:
        params = {"fieldSelector": f"regarding.uid={pod.uid}", "limit": str(MAX_EVENTS)}
        try:
            answer = await self.session.request("GET", EVENTS.path(pod.namespace), params=params)
        except ApiError as error:
            # Events only explain: without them, the condition names the pod whose events to read.
            _LOG.debug(f"cannot read the events of a pod pod={pod.name}: {error}")
            return None
        return _obstacle(answer.get("items") or (), pod.uid)


def _obstacle(events: Any, uid: str) -> PodIssue | None:
    """Return what the most telling of the last events says."""
    own = [event for event in events if event["regarding"].get("uid") == uid]
    passed = max((_time(event) for event in own if event.get("reason") in PROGRESS_EVENTS), default="")
    about = [event for event in own if event.get("reason") in START_EVENTS and (not passed or _time(event) > passed)]
    latest = max(about, key=lambda event: (not _note(event).startswith(FOLLOW_UP), _time(event)), default=None)
    return PodIssue(latest["reason"], _note(latest)) if latest else None


def _note(event: Mapping[str, Any]) -> str:
    return str(event.get("note") or "")


def _time(event: Mapping[str, Any]) -> str:
    """Return when the event happened last. The kubelet still writes the fields of the older API."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return str(series or event.get("deprecatedLastTimestamp") or event.get("eventTime") or "")
