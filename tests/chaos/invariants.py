"""Find violations of the invariants in the whole history of a scenario. Pure: steps in, messages out."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.history import Step, live, owner

Json = dict[str, Any]

FINAL: Final = frozenset({"Complete", "Failed"})
LEGAL: Final = {
    None: {"Pending", "Running", "Suspended", "Failed"},
    "Pending": {"Running", "Restarting", "Suspended", "Complete", "Failed"},
    "Running": {"Pending", "Restarting", "Suspended", "Complete", "Failed"},
    "Restarting": {"Running", "Suspended", "Complete", "Failed"},
    "Suspended": {"Pending"},
    "Complete": set(),
    "Failed": set(),
}
"""The moves of a phase. Running goes back to Pending where a worker's node takes its word back; no story here does
that."""


@dataclass(slots=True)
class ClusterState:
    """The state of the cluster at one step of the history."""

    jobs: dict[str, Json] = field(default_factory=dict)
    pods: dict[str, Json] = field(default_factory=dict)
    names: set[tuple[str, str]] = field(default_factory=set)
    """Every pod that was ever made, by its job and name."""


def violations(steps: Iterable[Step], user_writes: Collection[int]) -> list[str]:
    """Return all violations, a message each, with the version at which it happened."""
    state, found = ClusterState(), []
    for step in steps:
        if step.kind == "job":
            found += [f"at version {step.version}: {message}" for message in _job(state, step, user_writes)]
        elif step.kind == "pod":
            found += [f"at version {step.version}: {message}" for message in _pod(state, step)]
    return [*dict.fromkeys(found)]


def orphans(jobs: Iterable[Json], owned: Iterable[Json]) -> list[str]:
    """What still belongs to a job that is no more."""
    alive = {job["metadata"]["uid"] for job in jobs}
    return [f"{obj['kind']} {obj['metadata']['name']} has outlived its job" for obj in owned if owner(obj) not in alive]


def _job(state: ClusterState, step: Step, user_writes: Collection[int]) -> Iterator[str]:
    uid = step.obj["metadata"]["uid"]
    if step.new is None:
        state.jobs.pop(uid, None)
        return
    state.jobs[uid] = step.new
    if step.old is None or step.old["metadata"]["uid"] != uid:
        return
    if step.version not in user_writes and _desired(step.old) != _desired(step.new):
        yield "somebody other than the user wrote the spec or the metadata of the job"
    before, after = step.old.get("status") or {}, step.new.get("status") or {}
    if after.get("phase") != before.get("phase") and after.get("phase") not in LEGAL[before.get("phase")]:
        yield f"the phase went from {before.get('phase')} to {after.get('phase')}"
    if before.get("phase") in FINAL and after.get("restarts") != before.get("restarts"):
        yield "restarts were counted after the end"
    if not 0 <= after.get("attempt", 1) - before.get("attempt", 1) <= 1:
        yield f"the attempt went from {before.get('attempt')} to {after.get('attempt')}"
    counted = {kind: _count(after, kind) - _count(before, kind) for kind in ("failures", "disruptions", "resizes")}
    if min(counted.values()) < 0 or sum(counted.values()) > 1:
        yield f"the restarts moved by {counted}"
    moved_on = after.get("attempt") != before.get("attempt") or after.get("phase") in FINAL
    if any(counted.values()) and not moved_on:
        yield f"{counted} was counted within attempt {after.get('attempt')}"


def _pod(state: ClusterState, step: Step) -> Iterator[str]:
    pod, uid, job_uid = step.obj, step.obj["metadata"]["uid"], owner(step.obj)
    if job_uid is None:
        return
    if step.new is None:
        state.pods.pop(uid, None)
        return
    state.pods[uid] = step.new
    if step.old is None:
        yield from _birth(state, pod, job_uid)
    yield from _group(state, job_uid)


def _birth(state: ClusterState, pod: Json, job_uid: str) -> Iterator[str]:
    name, attempt = pod["metadata"]["name"], int(pod["metadata"]["labels"]["trainyard.dev/attempt"])
    if (job_uid, name) in state.names:
        yield f"pod {name} was made a second time"
    state.names.add((job_uid, name))
    if (job := state.jobs.get(job_uid)) is None:
        return  # deleted while the request was on its way; the garbage collector's
    status = job.get("status") or {}
    if attempt != status.get("attempt", 1):
        yield f"pod {name} was made in attempt {status.get('attempt')}"
    for kind in ("Complete", "Failed", "Suspended"):
        if any(c["type"] == kind and c["status"] == "True" for c in status.get("conditions", ())):
            yield f"pod {name} was made for a job that is {kind}"


def _group(state: ClusterState, job_uid: str) -> Iterator[str]:
    ranks: dict[str, list[str]] = defaultdict(list)
    sizes = []
    for pod in state.pods.values():
        if owner(pod) == job_uid and live(pod):
            ranks[pod["metadata"]["labels"]["trainyard.dev/index"]].append(pod["metadata"]["name"])
            sizes.append(int(pod["metadata"]["annotations"]["trainyard.dev/workers"]))
    for rank, names in ranks.items():
        if len(names) > 1:
            yield f"rank {rank} lives twice: {', '.join(sorted(names))}"
    if sizes and sum(map(len, ranks.values())) > max(sizes):
        yield f"{sum(map(len, ranks.values()))} live pods in a group of {max(sizes)}"


def _desired(job: Json) -> Json:
    metadata = {k: v for k, v in job["metadata"].items() if k not in {"resourceVersion", "managedFields", "generation"}}
    metadata.pop("deletionTimestamp", None)
    metadata.pop("deletionGracePeriodSeconds", None)
    return {"spec": job["spec"], "metadata": metadata}


def _count(status: Json, kind: str) -> int:
    return int((status.get("restarts") or {}).get(kind, 0))
