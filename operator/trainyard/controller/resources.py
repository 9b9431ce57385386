"""The kinds that the operator works with beyond Kubernetes' own, and what it keeps of each object."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from trainyard.api.constants import CONTROLLER_NAME, GROUP, KIND, LABEL_JOB_UID, PLURAL, VERSION
from trainyard.api.status import TrainingJobStatus
from trainyard.domain.model import JobView
from trainyard.domain.observe import job_view, owner_uid
from trainyard.kube.events import ObjectReference
from trainyard.kube.resource import Resource

TRAINING_JOBS = Resource(GROUP, VERSION, PLURAL, KIND)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A TrainingJob as the cache has it: readable, or with the sentence that says why it is not."""

    uid: str
    resource_version: int
    namespace: str
    name: str
    generation: int
    view: JobView | None
    status: TrainingJobStatus | None = None
    """What is stored, also of a job whose spec cannot be read."""
    problem: str = ""
    managed_elsewhere: bool = False
    """Whether another controller looks after it, read even where the rest cannot be."""

    @property
    def reference(self) -> ObjectReference:
        """What events about the job refer to."""
        return ObjectReference(TRAINING_JOBS.api_version, KIND, self.namespace, self.name, self.uid)


def job_record(raw: Mapping[str, Any]) -> JobRecord:
    """A TrainingJob, whatever is in it."""
    metadata = raw["metadata"]
    view, status, problem = None, None, ""
    try:
        status = TrainingJobStatus.model_validate(raw.get("status") or {})
        view = job_view(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in ("spec" if status else "status", *first["loc"]))
        problem = f"{where}: {first['msg']}"
    return JobRecord(
        uid=metadata["uid"],
        resource_version=int(metadata["resourceVersion"]),
        namespace=metadata["namespace"],
        name=metadata["name"],
        generation=metadata.get("generation", 0),
        view=view,
        status=status,
        problem=problem,
        managed_elsewhere=raw.get("spec", {}).get("managedBy") not in {None, CONTROLLER_NAME},
    )


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A job's Service."""

    uid: str
    resource_version: int
    job_uid: str


def service_record(raw: Mapping[str, Any]) -> ServiceRecord:
    """A Service with our label. It counts for the job that controls it: a label can be copied, an owner means it."""
    metadata = raw["metadata"]
    owner = owner_uid(raw)
    if owner is None or owner != metadata["labels"][LABEL_JOB_UID]:
        raise ValueError(f"its label {LABEL_JOB_UID} names another job than its owner reference")
    return ServiceRecord(metadata["uid"], int(metadata["resourceVersion"]), owner)
