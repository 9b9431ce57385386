"""Remember which workers have succeeded: their pods may be deleted, or lost with their node, while the others train. Pure."""

from dataclasses import replace

from trainyard.api.internal_status import Succeeded, WorkerRange
from trainyard.domain.state.object_names import worker_pod
from trainyard.domain.state.snapshot import JobView, Snapshot
from trainyard.domain.state.worker_ranges import consecutive
from trainyard.domain.state.worker_views import PodView, State


def remember_success(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with each success of the current attempt in its status, and with a view of each of these workers.

    A worker of a stored success stays succeeded: its pod may be deleted, or fail by another container. A pod that does not
    exist any more is seen as `gone`, so that all decisions find a worker that has succeeded.
    """
    job, stored = snapshot.job, snapshot.job.status.succeeded_workers
    # Before the rendezvous, a kept pod may have ended in the previous attempt.
    seen = () if job.status.awaiting_rendezvous else snapshot.current
    succeeded = stored | {pod.index for pod in seen if pod.state is State.SUCCEEDED}
    if not succeeded:
        return snapshot
    if succeeded != stored:
        ranges = [WorkerRange(first=run[0], last=run[-1]) for run in consecutive(succeeded)]
        record = Succeeded(attempt=job.status.attempt, workers=ranges)
        job = replace(job, status=job.status.evolve(succeeded=record))
    current = {pod.uid for pod in snapshot.current}
    pods = [_succeeded(pod) if pod.uid in current and pod.index in succeeded else pod for pod in snapshot.pods]
    present = {pod.index for pod in snapshot.current}
    sizes = [pod.workers for pod in snapshot.current]
    gone = [_gone(job, index, max(sizes, default=0)) for index in sorted(succeeded - present)]
    return replace(snapshot, job=job, pods=[*pods, *gone])


def _succeeded(pod: PodView) -> PodView:
    """Return the pod as that of a worker that has succeeded, whatever happens to it afterwards."""
    end = replace(pod.exit, code=0) if pod.exit else None
    return replace(pod, phase="Succeeded", exit=end, running=False, issue=None, disruption=None, disrupted_at=None)


def _gone(job: JobView, index: int, workers: int) -> PodView:
    """Return the view of a worker that has succeeded and whose pod does not exist any more."""
    attempt = job.status.created_in_attempt(index)
    return PodView(
        uid="",
        namespace=job.namespace,
        name=worker_pod(job.name, index, attempt, job.status.recreated(index)),
        resource_version=0,
        job_uid=job.uid,
        attempt=attempt,
        index=index,
        recreated=job.status.recreated(index),
        workers=workers,
        phase="Succeeded",
        ended=True,
        gone=True,
    )
