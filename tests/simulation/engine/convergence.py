"""What must be true once everything has had its time: the cluster holds what the specs ask for, and no client writes any more."""

from collections.abc import Iterator

from tests.simulation.engine import stored_objects
from tests.simulation.engine.engine_simulation import EngineSimulation
from tests.simulation.engine.invariants import InvariantError
from tests.simulation.engine.stored_objects import JOBS_PLACE, PODS_PLACE, SERVICES_PLACE
from tests.support.fake_cluster import Json

SETTLING_SECONDS = 900.0
"""Time for the longest delays, deadlines and lists, one after the other."""
QUIET_SECONDS = 3600.0
SHORT_SECONDS = 60.0


def come_to_rest(world: EngineSimulation) -> None:
    """Let the troubles end, wait, and look at what there is; then for an hour nothing may be written.

    Several processes that agree on a leader write to their lease every two seconds, which takes its time: of these a few minutes
    must do.
    """
    world.clear()
    world.run(SETTLING_SECONDS)
    if wrong := [*unmet(world)]:
        raise InvariantError("at rest, " + "; ".join(wrong))
    before = world.laws.writes
    world.run(QUIET_SECONDS if len(world.processes) == 1 else SHORT_SECONDS)
    if world.laws.writes != before:
        raise InvariantError("converged is not quiet")


def unmet(world: EngineSimulation) -> Iterator[str]:
    """What is not as the specs ask for, a sentence each."""
    cluster = world.server.cluster
    jobs = {stored_objects.uid(job): job for job in cluster.held(JOBS_PLACE)}
    for place in (PODS_PLACE, SERVICES_PLACE):
        for obj in cluster.held(place):
            if stored_objects.owner(obj) not in jobs and not (place == PODS_PLACE and world.life.is_lost(obj)):
                yield f"{place[2]} {stored_objects.name(obj)} is an orphan"
    for uid, job in jobs.items():
        if not stored_objects.foreign(job) and not _name_is_taken(world, job):
            pods = [pod for pod in cluster.held(PODS_PLACE) if stored_objects.owner(pod) == uid]
            remains = [pod for pod in pods if world.life.is_lost(pod) and stored_objects.going(pod)]
            service = any(stored_objects.owner(service) == uid for service in cluster.held(SERVICES_PLACE))
            for sentence in _job(job, [pod for pod in pods if pod not in remains], remains, service=service):
                yield f"job {stored_objects.name(job)} ({uid}) {sentence}"


def _name_is_taken(world: EngineSimulation, job: Json) -> bool:
    """Whether a deleted namesake's pod is left on a node that never came back. Until somebody removes it, its name is taken."""
    strangers = (
        pod for pod in world.pods() if stored_objects.owner(pod) != stored_objects.uid(job) and world.life.is_lost(pod)
    )
    return any(stored_objects.name(pod).startswith(f"{stored_objects.name(job)}-worker-") for pod in strangers)


def _job(job: Json, pods: list[Json], remains: list[Json], *, service: bool) -> Iterator[str]:
    """`remains`: the pods that are to go, on nodes that never came back."""
    status = job.get("status", {})
    if any(stored_objects.forsaken(pod) for pod in remains if _unused(job, pod)):
        yield "has pods on dead nodes that are not removed"
    if stored_objects.going(job):
        if not remains:
            yield "is still being deleted"
        return
    if status.get("observedGeneration") != job["metadata"]["generation"]:
        yield "has a spec that was not looked at"
    if status.get("replicas") != len(pods) + len(remains):
        yield f"has {len(pods)} + {len(remains)} pods and says {status.get('replicas')}"
    if any(stored_objects.going(pod) for pod in pods):
        yield "has pods that do not go"
    if stored_objects.finished(job):
        yield from _finished(job, pods)
    elif stored_objects.lifecycle(job, "suspend"):
        if pods or not stored_objects.holds(job, "Suspended"):
            yield f"should be suspended, is {status.get('phase')} and has {len(pods)} pods"
    else:
        done = [
            pod
            for pod in remains
            if stored_objects.succeeded(pod) and stored_objects.attempt(pod) == stored_objects.stored_attempt(job)
        ]
        yield from _active(job, [*pods, *done], service=service)


def _unused(job: Json, pod: Json) -> bool:
    over = stored_objects.finished(job) or stored_objects.holds(job, "Suspended") or stored_objects.going(job)
    return over or stored_objects.attempt(pod) < stored_objects.stored_attempt(job)


def _active(job: Json, pods: list[Json], *, service: bool) -> Iterator[str]:
    status, replicas, attempt = job.get("status", {}), stored_objects.size(job), stored_objects.stored_attempt(job)
    ranks = {stored_objects.rank(pod) for pod in pods}
    # A worker whose success is stored needs no pod any more.
    done = [(rank, attempt, replicas) for rank in stored_objects.stored_successes(job) - ranks]
    there = sorted(
        [*((stored_objects.rank(pod), stored_objects.attempt(pod), stored_objects.workers(pod)) for pod in pods), *done]
    )
    if there != [(rank, attempt, replicas) for rank in range(replicas)]:
        yield f"has the pods {there}"
    if not all(stored_objects.running(pod) or stored_objects.succeeded(pod) for pod in pods):
        yield "has pods that do not run"
    if all(stored_objects.succeeded(pod) for pod in pods):
        yield "has done its work and is not Complete"
    if not (stored_objects.holds(job, "Running") and status.get("phase") == "Running") or stored_objects.holds(
        job, "Suspended"
    ):
        yield f"is {status.get('phase')}"
    if status.get("ready") != f"{replicas}/{replicas}" or status.get("internal", {}).get("launchedAttempt") != attempt:
        yield f"says it is ready {status.get('ready')}, launched {status.get('launchedAttempt')}"
    if replicas > 1 and not service:  # a single worker looks up no other
        yield "has no Service"


def _finished(job: Json, pods: list[Json]) -> Iterator[str]:
    policy = stored_objects.lifecycle(job, "cleanPods") or "Running"
    if policy == "All" and pods:
        yield "has finished and has pods"
    if policy == "Running" and not all(stored_objects.ended(pod) for pod in pods):
        yield "has finished and has running pods"
    if stored_objects.lifecycle(job, "ttlSecondsAfterFinished") is not None:
        yield "has outlived its time"
