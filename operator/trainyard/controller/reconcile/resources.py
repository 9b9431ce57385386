"""The kinds that the operator works with beyond Kubernetes' own, and what it keeps of each object."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from pydantic import ValidationError

from trainyard.api.constants import CONTROLLER_NAME, GROUP, KIND, LABEL_JOB_UID, PLURAL, VERSION
from trainyard.api.progress import Goodput, Progress
from trainyard.api.spec import Framework
from trainyard.api.status import Avoidance, Phase, Restarts, TrainingJobStatus
from trainyard.domain.progress.stragglers import confirmed
from trainyard.domain.state.observe import job_view, owner_uid, pod_view
from trainyard.domain.state.rank_layout import accelerators
from trainyard.domain.state.snapshot import JobView, PodView
from trainyard.kube.events import ObjectReference
from trainyard.kube.resource import Resource

TRAINING_JOBS = Resource(GROUP, VERSION, PLURAL, KIND)
KEPT = ("uid", "resourceVersion", "namespace", "name", "generation", "deletionTimestamp")
"""The fields of the metadata that matter."""
NO_RESTARTS = Restarts()


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A TrainingJob as the cache has it: readable, or with the sentence that says why it is not.

    It keeps the text, from which each pass reads spec and status anew: 20 µs of time for 15 kB of memory a job.
    """

    uid: str
    resource_version: int
    namespace: str
    name: str
    generation: int
    text: bytes
    sort: tuple[Phase, Framework] | None = None
    """For the count of all jobs; None where the job cannot be read."""
    attempt: int = 0
    """For the log; 0 where the job cannot be read."""
    straggling: int = 0
    """How many of its ranks are slower than the others, as its status says."""
    avoided: int = 0
    """How many nodes its workers keep away from, as its status says."""
    goodput: Goodput | None = None
    """For the metrics; None where nothing is told, or the job cannot be read."""
    progress: Progress | None = None
    """Likewise."""
    active_since: datetime | None = None
    """Since when without a suspension between, as its status says."""
    workers: int = 0
    """How many its group has; 0 where the job cannot be read."""
    accelerators: int = 0
    """How many its pods hold, as its status says."""
    restarts: Restarts = NO_RESTARTS
    """As its status says."""
    problem: str = ""
    managed_elsewhere: bool = False
    """Whether another controller looks after it, read even where the rest cannot be."""

    @property
    def view(self) -> JobView | None:
        """The job, if it can be read."""
        return None if self.problem else job_view(orjson.loads(self.text))

    @property
    def status(self) -> TrainingJobStatus | None:
        """What is stored, also of a job whose spec cannot be read."""
        try:
            return TrainingJobStatus.model_validate(orjson.loads(self.text)["status"])
        except ValidationError:
            return None

    def with_status(self, status: TrainingJobStatus, resource_version: int) -> "JobRecord":
        """The same job after its status was stored, as the API server has it under this version."""
        raw = orjson.loads(self.text)
        raw["metadata"]["resourceVersion"] = str(resource_version)
        return job_record({**raw, "status": status.dump()})

    @property
    def reference(self) -> ObjectReference:
        """What events about the job refer to."""
        return ObjectReference(TRAINING_JOBS.api_version, KIND, self.namespace, self.name, self.uid)


def job_record(raw: Mapping[str, Any]) -> JobRecord:
    """A TrainingJob, whatever is in it."""
    # kopf's mappings are no dictionaries; and what others have written into the metadata is of no use here.
    metadata = {key: raw["metadata"][key] for key in KEPT if key in raw["metadata"]}
    spec, status = dict(raw.get("spec") or {}), dict(raw.get("status") or {})
    sort, attempt, goodput, progress, problem, part = None, 0, None, None, "", "status"
    active_since = None
    straggling = avoided = workers = held = 0
    restarts = NO_RESTARTS
    try:
        TrainingJobStatus.model_validate(status)
        part = "spec"
        view = job_view({"metadata": metadata, "spec": spec, "status": status})
        sort, attempt = (view.status.phase, view.spec.framework), view.status.attempt
        straggling = len(confirmed(view.status))
        avoided = sum(node.avoidance is not Avoidance.NONE for node in view.status.suspect_nodes)
        goodput, progress, active_since = view.status.goodput, view.status.progress, view.status.internal.active_since
        workers, restarts = view.status.size or view.spec.replicas, view.status.restarts
        each = sum(accelerators(container) for container in view.spec.template["spec"]["containers"])
        # Those that are to join may have no place yet; those that have ended hold nothing.
        held = 0 if view.status.finished else min(view.status.replicas, workers) * each
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(each) for each in (part, *first["loc"]))
        problem = f"{where}: {first['msg']}"
    except Exception as error:  # noqa: BLE001 - whatever one job does to its reader, the others are still to be heard of
        problem = f"{part}: {type(error).__name__}: {error}"
    return JobRecord(
        uid=metadata["uid"],
        resource_version=int(metadata["resourceVersion"]),
        namespace=metadata["namespace"],
        name=metadata["name"],
        generation=metadata.get("generation", 0),
        # orjson's bytes hold on to their buffer of 4 kB: a copy has the size that it needs.
        text=bytes(memoryview(orjson.dumps({"metadata": metadata, "spec": spec, "status": status}))),
        sort=sort,
        attempt=attempt,
        straggling=straggling,
        avoided=avoided,
        goodput=goodput,
        progress=progress,
        active_since=active_since,
        workers=workers,
        accelerators=held,
        restarts=restarts,
        problem=problem,
        managed_elsewhere=spec.get("managedBy") not in {None, CONTROLLER_NAME},
    )


def pod_record(raw: Mapping[str, Any]) -> PodView:
    """A pod with our label. Raises KeyError or ValueError where it is no worker of a job."""
    pod = pod_view(raw)
    _check_owner(raw)
    return pod


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A job's Service."""

    uid: str
    namespace: str
    resource_version: int
    job_uid: str


def service_record(raw: Mapping[str, Any]) -> ServiceRecord:
    """A Service with our label. Raises KeyError or ValueError where it is no job's."""
    _check_owner(raw)
    metadata = raw["metadata"]
    version = int(metadata["resourceVersion"])
    return ServiceRecord(metadata["uid"], metadata["namespace"], version, metadata["labels"][LABEL_JOB_UID])


def _check_owner(raw: Mapping[str, Any]) -> None:
    """An object counts for the job that controls it: a label can be copied, an owner reference means it."""
    if owner_uid(raw) != raw["metadata"]["labels"][LABEL_JOB_UID]:
        raise ValueError(f"its label {LABEL_JOB_UID} names another job than its owner reference")
