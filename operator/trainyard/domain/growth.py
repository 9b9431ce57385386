"""Workers that are to join a group which trains: their pods are made, started and have imported before the others stop for them. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from trainyard.api.reasons import Reason
from trainyard.api.status import MOST_REPLACED, Joining
from trainyard.domain.actions import Action, CreateWorker, Event
from trainyard.domain.ladder import keeps_pods
from trainyard.domain.model import Doing, PodView, Snapshot
from trainyard.domain.supervision import accompanied
from trainyard.domain.wording import counted
from trainyard.domain.worker import State, state


def held_back(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it is to be planned for: the group keeps its size until those that join are ready, or one of them has failed.

    Where they could not begin together with pods that are there, nothing is held back: all are made anew.
    """
    job, size, wish = snapshot.job, snapshot.size, snapshot.job.spec.replicas
    if wish <= size or not _can_wait(snapshot, wish - size) or _is_settled(snapshot, range(size, wish)):
        return snapshot
    kept = job.spec.model_copy(update={"replicas": size})
    return replace(snapshot, job=replace(job, spec=kept), wish=wish)


def joining(snapshot: Snapshot) -> Joining | None:
    """What the status is to say of those that join. Where nobody is to any more: that, until they are gone."""
    before, status = snapshot.job.status.joining, snapshot.job.status
    if snapshot.wish is None:
        left = before is not None and any(pod.index >= before.size for pod in snapshot.pods)
        return before.model_copy(update={"workers": before.size}) if before and left else None
    same = before is not None and before.size == snapshot.size
    attempt = before.attempt if before and same else status.attempt
    return Joining(size=snapshot.size, workers=snapshot.wish, attempt=attempt)


def told(begun: Joining | None) -> Sequence[Event]:
    """The event with which it begins."""
    more = begun.workers - begun.size if begun else 0
    if begun is None or not more:
        return []
    those = "one that joins is" if more == 1 else f"{more} that join are"
    note = f"replicas was raised to {begun.workers}; the group of {begun.size} trains on until {those} ready"
    return [Event("Normal", Reason.WORKERS_JOINING, note)]


def newcomers(snapshot: Snapshot) -> Sequence[Action]:
    """The pods that are to be made for those that join."""
    asked = snapshot.job.status.joining
    if asked is None or snapshot.wish is None:
        return []
    there = {pod.index for pod in snapshot.joining}
    return [CreateWorker(i, asked.attempt, asked.workers) for i in range(asked.size, asked.workers) if i not in there]


def story(snapshot: Snapshot) -> str:
    """How far they are, for people."""
    wished = (snapshot.wish or snapshot.size) - snapshot.size
    count = sum(_is_ready(snapshot, pod) for pod in snapshot.joining)
    why = next(
        (f": pod {pod.name}: {pod.trouble.message or pod.trouble.reason}" for pod in snapshot.joining if pod.trouble),
        "",
    )
    return f"{count} of {counted(wished, 'worker')} that join {'is' if count == 1 else 'are'} ready{why}; until all are, the others train on"


def _can_wait(snapshot: Snapshot, more: int) -> bool:
    job, status = snapshot.job, snapshot.job.status
    few = more + len(status.group.replaced if status.group else ()) <= MOST_REPLACED
    heard = snapshot.hearing_since is not None and accompanied(job, brought=snapshot.agent)
    begun = status.launched_attempt > 0
    return keeps_pods(job.spec) and few and heard and begun


def _is_settled(snapshot: Snapshot, wished: range) -> bool:
    there = {pod.index: pod for pod in snapshot.joining}
    failed = any(pod.ended or state(pod) is State.FAILED for pod in there.values())
    return failed or all(index in there and _is_ready(snapshot, there[index]) for index in wished)


def _is_ready(snapshot: Snapshot, pod: PodView) -> bool:
    agent = snapshot.agents.get(pod.uid)
    return agent is not None and agent.connected and agent.doing is Doing.WAITING and not pod.taken_by
