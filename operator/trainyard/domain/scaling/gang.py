"""Decide the gang of a new group: the scheduler that places its members all or none, and how many of them at least. Pure.

The gang is stored before its PodGroup is created, and stays as long as the group keeps pods. Replaced pods and joining workers
have the PodGroup of the others: its members run already, so that each of these is placed by itself.
"""

from typing import Final

from trainyard.api.internal_status import PodGroup
from trainyard.api.scheduling import Gang, GangScheduler
from trainyard.domain.state.gang_schedulers import GangDecision, GangSchedulers, own_group
from trainyard.domain.state.snapshot import JobView, Snapshot

PRODUCTS: Final = {
    GangScheduler.NATIVE: "PodGroups of Kubernetes (scheduling.k8s.io, off by default)",
    GangScheduler.VOLCANO: "PodGroups of Volcano (scheduling.volcano.sh)",
    GangScheduler.COSCHEDULING: "PodGroups of scheduler-plugins (scheduling.x-k8s.io)",
}


def decide_gang(snapshot: Snapshot) -> GangDecision:
    """Return the gang of a group whose pods are about to be created; nothing where it has pods already."""
    job, status, schedulers = snapshot.job, snapshot.job.status, snapshot.gang_schedulers
    begins = status.internal.group is None and status.internal.launched_attempt < status.attempt
    if not begins:
        return GangDecision()
    if stored := status.pod_group:
        # No PodGroup can be changed: the size was, before any pod was created.
        return GangDecision(outdated=not snapshot.current and stored.min_member != smallest_gang(snapshot))
    if (named := _named(job)) and named not in schedulers.found:
        return GangDecision(unavailable_because=_why_unavailable(named, schedulers))
    members = smallest_gang(snapshot)
    scheduler = named or _chosen(job, schedulers, members)
    if scheduler is None:
        return GangDecision()
    queue = job.volcano_queue if scheduler is GangScheduler.VOLCANO else None
    return GangDecision(
        PodGroup(scheduler=scheduler, created_in_attempt=status.attempt, min_member=members, queue=queue)
    )


def smallest_gang(snapshot: Snapshot) -> int:
    """Return the fewest members with which the group starts: all, or of an elastic group the smallest size and the roles."""
    smallest = snapshot.size.smallest if snapshot.joinable else None
    return len(snapshot.job.members(smallest or snapshot.size.desired))


def _named(job: JobView) -> GangScheduler | None:
    """Return the scheduler that the job names; None where it leaves the choice, or its template names a group already."""
    gang = job.spec.scheduling.gang
    if gang in {Gang.AUTO, Gang.NONE} or own_group(job.spec.template):
        return None
    return GangScheduler(gang)


def _chosen(job: JobView, schedulers: GangSchedulers, members: int) -> GangScheduler | None:
    """Return the gang scheduler for a job that leaves the choice; None where it gets none."""
    if job.spec.scheduling.gang is not Gang.AUTO or own_group(job.spec.template):
        return None
    if job.volcano_queue is not None:
        return GangScheduler.VOLCANO
    # One member is always all or none.
    usable = (each for each in schedulers.available if members > 1 and schedulers.serves(each, job.spec.template))
    return next(usable, None)


def _why_unavailable(named: GangScheduler, schedulers: GangSchedulers) -> str:
    """Return why no job can have this scheduler, and the fix."""
    if named not in schedulers.permitted:
        return (
            f"scheduling.gang is {named}, which gangs.schedulers of the operator's chart does not list; "
            "no worker is started: add it there, or set scheduling.gang to auto or none"
        )
    return (
        f"scheduling.gang is {named}, and the cluster had no {PRODUCTS[named]} when the operator started; "
        "no worker is started: install them and restart the operator, or set scheduling.gang to auto or none"
    )
