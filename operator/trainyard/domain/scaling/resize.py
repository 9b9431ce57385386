"""Verdicts on the size of a group: as the user wishes it, and as the cluster has room for it. Pure."""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from trainyard.api.internal_status import Backoff, Joining
from trainyard.api.reasons import Reason
from trainyard.domain.decisions import Restart
from trainyard.domain.recovery.restart_budget import increment, reset_streaks
from trainyard.domain.recovery.restart_scope import choose_resized_group, torchrun_rendezvous
from trainyard.domain.scaling.group_size import keep
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.wording import counted

if TYPE_CHECKING:
    from trainyard.api.status import StatusChanges


def resize(snapshot: Snapshot, was: int, now: datetime) -> Restart:
    """The group starts anew with another number of workers."""
    elastic, size = snapshot.job.spec.elastic, snapshot.size.desired
    # By whom it was wished for is not known of an elastic one: it may have lacked these workers.
    why = (
        f"the group goes from {counted(was, 'worker')} to {size}"
        if elastic
        else f"replicas was changed from {was} to {size}"
    )
    return _resized(snapshot, was, Reason.RESIZED, why, None, now)


def shrink(snapshot: Snapshot, size: int, why: str, now: datetime) -> Restart:
    """The group goes on with fewer workers, because there is no room for the others."""
    workers, elastic = snapshot.size.desired, snapshot.job.spec.elastic
    seconds = elastic.shrink_after_seconds if elastic else 0
    message = (
        f"there was no room for all {workers} workers within {seconds} seconds ({why}): the group goes on with {size}"
    )
    joining = Joining(current_size=size, target_size=size, attempt=snapshot.job.status.attempt + 1)
    smaller = replace(snapshot, decided_size=keep(snapshot.size, size))
    return _resized(smaller, workers, Reason.INSUFFICIENT_CAPACITY, message, joining, now)


def _resized(snapshot: Snapshot, was: int, reason: Reason, why: str, joining: Joining | None, now: datetime) -> Restart:
    job, status = snapshot.job, snapshot.job.status
    restarts = status.restarts.evolve(resizes=increment(status.restarts.resizes))
    group, told = choose_resized_group(snapshot)
    update: StatusChanges = {
        "restarts": restarts,
        "restart_budget": reset_streaks(status),
        "backoff": Backoff(),
        "group": group,
        "joining": joining,
        "previous_size": was,
        **torchrun_rendezvous(job, group),
    }
    if job.spec.elastic:
        update["scale_up_paused_since"] = now
    if group and all(each.attempt <= status.attempt for each in group.replacements):
        # No pod is to be made.
        update["launched_attempt"] = status.attempt + 1
    return Restart(reason, why, scope=told, changes=update)
