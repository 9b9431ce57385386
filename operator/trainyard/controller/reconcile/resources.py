"""The kinds that the operator watches, and the record that it keeps of each object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson
from pydantic import ValidationError
from typing_extensions import override

from trainyard.api.constants import (
    ANNOTATION_DUMP_STACKS,
    CONTROLLER_NAME,
    GROUP,
    KIND,
    LABEL_JOB_UID,
    LABEL_MAX_EXECUTION,
    LABEL_QUEUE,
    LABEL_QUEUE_PRIORITY,
    PLURAL,
    PROVISIONING_PREFIX,
    VERSION,
)
from trainyard.api.progress import Goodput, Progress
from trainyard.api.roles import member_index
from trainyard.api.spec import Framework
from trainyard.api.status import ConditionType, Phase, Restarts, SuspectNode, TrainingJobStatus
from trainyard.api.worker_status import RoleStatus
from trainyard.domain.progress.stragglers import confirmed
from trainyard.domain.state.accelerators import ACCELERATORS, AcceleratorTable, accelerators
from trainyard.domain.state.object_names import worker_pod
from trainyard.domain.state.observe import job_view, owner, pod_view
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.worker_views import PodView
from trainyard.domain.state.workload import WorkloadView, workload_view
from trainyard.kube.events import ObjectReference
from trainyard.kube.resource import Resource

TRAINING_JOBS = Resource(GROUP, VERSION, PLURAL, KIND)
KEPT_METADATA = ("uid", "resourceVersion", "namespace", "name", "generation", "deletionTimestamp")
"""The metadata fields that are kept."""
KEPT_LABELS = (LABEL_QUEUE, LABEL_QUEUE_PRIORITY, LABEL_MAX_EXECUTION)
"""The labels that are kept: what the job asks of a queue."""
MAX_PARAMETERS = 16
"""Parameters of provisioning requests that are kept."""
MAX_PARAMETER_LENGTH = 256
"""Characters of each: Kueue allows 255."""
NO_RESTARTS = Restarts()
PARSED_JOBS = 64
"""How many parsed jobs are kept."""
PAGE_JOBS = 50
"""Jobs in a page of a list. A tenant chooses their size: 50 of 1.5 MiB, the most that etcd stores, are 75 MiB of JSON."""
MAX_SPEC_BYTES = 256 * 1024
"""The largest spec, as JSON. The operator keeps all specs in memory: 1,000 of this size fit its limit."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A TrainingJob in the cache: readable, or with the problem that makes it unreadable.

    It keeps the JSON text and not the parsed job, which saves 15 kB of memory per job. The last parsed jobs are kept
    as well: the agents of one job ask one after the other, each several times in a restart.
    """

    uid: str
    resource_version: int
    namespace: str
    name: str
    generation: int
    text: bytes
    category: tuple[Phase, Framework] | None = None
    """For the count of all jobs; None if the job cannot be read."""
    attempt: int = 0
    """For the log; 0 if the job cannot be read."""
    straggling_ranks: int = 0
    """How many of its ranks are stragglers, from its status."""
    suspect_nodes: tuple[SuspectNode, ...] = ()
    """The nodes that ended attempts of it, from its status."""
    goodput: Goodput | None = None
    """For the metrics; None if nothing is reported or the job cannot be read."""
    progress: Progress | None = None
    """For the metrics; None if nothing is reported or the job cannot be read."""
    active_since: datetime | None = None
    """Since when the job is active without a suspension, from its status."""
    group_size: int = 0
    """The size of its group; 0 if the job cannot be read."""
    hang_suspected: bool = False
    """Whether no rank does anything, from its status."""
    accelerators: int = 0
    """How many accelerators its pods hold, from its status."""
    roles: tuple[RoleStatus, ...] = ()
    """The members of each role, from its status; empty in a group of workers alone."""
    restarts: Restarts = NO_RESTARTS
    """Restarts by cause, from its status."""
    accelerator_table: AcceleratorTable = field(default_factory=lambda: ACCELERATORS)
    """How the processes of its workers are counted."""
    problem: str = ""
    too_large: bool = False
    """Whether the spec exceeds `MAX_SPEC_BYTES`; it is not kept then."""
    without_template: bool = False
    """Whether the template is not kept, since the job has finished."""
    managed_elsewhere: bool = False
    """Whether another controller manages it, even if the rest cannot be read."""

    @property
    def view(self) -> JobView | None:
        """Return the job, if it can be read."""
        return None if self.problem else _parsed(self.text, _SameTable(self.accelerator_table))

    @property
    def status(self) -> TrainingJobStatus | None:
        """Return the stored status, also of a job whose spec cannot be read."""
        try:
            return TrainingJobStatus.model_validate(orjson.loads(self.text)["status"])
        except ValidationError:
            return None

    def with_status(self, status: TrainingJobStatus, resource_version: int) -> "JobRecord":
        """Return the same job with a status that the API server has stored under this version."""
        if self.without_template and not status.finished:
            # Not by this operator. The watch brings the whole object.
            return self
        raw = orjson.loads(self.text)
        raw["metadata"]["resourceVersion"] = str(resource_version)
        record = job_record({**raw, "status": status.dump()}, self.accelerator_table)
        return replace(record, problem=self.problem, too_large=True) if self.too_large else record

    @property
    def reference(self) -> ObjectReference:
        """Return the object that events about the job refer to."""
        return ObjectReference(TRAINING_JOBS.api_version, KIND, self.namespace, self.name, self.uid)


@dataclass(frozen=True, slots=True, eq=False)
class _SameTable:
    """A table that equals only itself. To hash its entries would take longer than to find the job, which each agent asks for."""

    table: AcceleratorTable

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameTable) and other.table is self.table

    @override
    def __hash__(self) -> int:
        return id(self.table)


@lru_cache(maxsize=PARSED_JOBS)
def _parsed(text: bytes, same: _SameTable) -> JobView:
    """Return the job of a record's text. Its models and its template are never changed in place."""
    return job_view(orjson.loads(text), same.table)


def job_record(raw: Mapping[str, Any], accelerator_table: AcceleratorTable = ACCELERATORS) -> JobRecord:
    """Parse a TrainingJob, whatever is in it. Never raises for an invalid spec or status."""
    # kopf's mappings are no dictionaries, and most metadata fields are not needed.
    metadata = {key: raw["metadata"][key] for key in KEPT_METADATA if key in raw["metadata"]}
    annotations, labels = raw["metadata"].get("annotations") or {}, raw["metadata"].get("labels") or {}
    if kept := _kept_annotations(annotations):
        metadata["annotations"] = kept
    if queue := {name: labels[name] for name in KEPT_LABELS if labels.get(name)}:
        metadata["labels"] = queue
    spec, status = dict(raw.get("spec") or {}), dict(raw.get("status") or {})
    spec_text = orjson.dumps(spec)
    spec_bytes = len(spec_text)
    too_large = spec_bytes > MAX_SPEC_BYTES
    if too_large:
        spec_text = orjson.dumps({"managedBy": spec["managedBy"]} if "managedBy" in spec else {})
    record = JobRecord(
        uid=metadata["uid"],
        resource_version=int(metadata["resourceVersion"]),
        namespace=metadata["namespace"],
        name=metadata["name"],
        generation=metadata.get("generation", 0),
        text=_text(metadata, spec_text, status),
        accelerator_table=accelerator_table,
        managed_elsewhere=spec.get("managedBy") not in {None, CONTROLLER_NAME},
    )
    if too_large:
        problem = f"spec: {spec_bytes // 1024} KiB exceed the limit of {MAX_SPEC_BYTES // 1024} KiB; use a ConfigMap"
        return replace(record, problem=problem, too_large=True)
    try:
        view = record.view
    except Exception as error:  # noqa: BLE001 - an unreadable job must not hide all others
        return replace(record, problem=_problem(error))
    if view is None:
        return record
    if view.status.finished:
        # Only then: whatever else the status says, the operator may still create pods.
        short = _text(metadata, orjson.dumps(_without_template(spec)), status)
        record = replace(record, text=short, without_template=True)
    return _with_summary(record, view)


def _kept_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return what is kept: the request for stacks, and parameters of provisioning requests as far as they are short."""
    kept = {ANNOTATION_DUMP_STACKS: request} if (request := annotations.get(ANNOTATION_DUMP_STACKS)) else {}
    parameters = [name for name in annotations if name.startswith(PROVISIONING_PREFIX)][:MAX_PARAMETERS]
    return kept | {name: annotations[name] for name in parameters if len(annotations[name]) <= MAX_PARAMETER_LENGTH}


def _text(metadata: Mapping[str, Any], spec_text: bytes, status: Mapping[str, Any]) -> bytes:
    """Return the JSON text of a record."""
    whole = orjson.dumps({"metadata": metadata, "spec": orjson.Fragment(spec_text), "status": status})
    # orjson's bytes keep their buffer of 4 kB: a copy has the size that it needs.
    return bytes(memoryview(whole))


def _without_template(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a readable, finished job still needs of its spec: all but its pods.

    Its spec cannot change any more, except for its lifecycle, and it creates no pods.
    """
    first = spec["template"]["spec"]["containers"][0]
    kept = {**spec, "template": {"spec": {"containers": [{"name": first.get("name", ""), "image": ""}]}}}
    if roles := spec.get("roles"):
        kept["roles"] = [{name: role[name] for name in ("name", "replicas") if name in role} for role in roles]
    return kept


def _problem(error: Exception) -> str:
    """Return why a job cannot be read, as a sentence."""
    if not isinstance(error, ValidationError):
        return f"spec: {type(error).__name__}: {error}"
    first = error.errors()[0]
    part = "status" if error.title == TrainingJobStatus.__name__ else "spec"
    return f"{'.'.join(str(name) for name in (part, *first['loc']))}: {first['msg']}"


def _with_summary(record: JobRecord, view: JobView) -> JobRecord:
    """Return the record with the values that metrics and logs need of the readable job."""
    status, group_size = view.status, view.status.size or view.spec.replicas
    return replace(
        record,
        category=(status.phase, view.spec.framework),
        attempt=status.attempt,
        straggling_ranks=len(confirmed(status)),
        suspect_nodes=tuple(status.suspect_nodes),
        goodput=status.goodput,
        progress=status.progress,
        active_since=status.internal.active_since,
        group_size=group_size,
        roles=tuple(status.roles),
        # A finished job holds nothing.
        accelerators=0 if status.finished else _accelerators(view, group_size, record.accelerator_table),
        restarts=status.restarts,
        hang_suspected=status.holds(ConditionType.HANG_SUSPECTED),
    )


def _accelerators(view: JobView, group_size: int, table: AcceleratorTable) -> int:
    """Return the accelerators of the pods of an active job. Joining workers may not be scheduled yet."""
    # Members of roles have pods while workers have.
    pods = {0: min(view.status.replicas, group_size)}
    if view.status.replicas:
        pods |= {member_index(role.name, 0): role.replicas for role in view.spec.roles}
    return sum(
        number * accelerators(container, table)
        for index, number in pods.items()
        for container in view.of_member(index).spec.template["spec"]["containers"]
    )


def pod_record(raw: Mapping[str, Any], topology_labels: Sequence[str] = ()) -> PodView:
    """Parse a pod with our label. Raises KeyError or ValueError if it is no worker of a job.

    `topology_labels`: the labels that name the place of its node.
    """
    pod = pod_view(raw, topology_labels)
    job = _check_owner(raw)
    if pod.name != worker_pod(job["name"], pod.index, pod.attempt, pod.recreated):
        # For example a copy for debugging: it would count as the worker whose index it has in its name.
        raise ValueError(f"{pod.name} is not the name of a worker of {job['name']}")
    return pod


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A job's Service."""

    uid: str
    namespace: str
    resource_version: int
    job_uid: str


def service_record(raw: Mapping[str, Any]) -> ServiceRecord:
    """Parse a Service with our label. Raises KeyError or ValueError if no job owns it."""
    _check_owner(raw)
    metadata = raw["metadata"]
    version = int(metadata["resourceVersion"])
    return ServiceRecord(metadata["uid"], metadata["namespace"], version, metadata["labels"][LABEL_JOB_UID])


def workload_record(raw: Mapping[str, Any]) -> WorkloadView:
    """Parse a Workload with our label. Raises KeyError or ValueError if no job owns it."""
    _check_owner(raw)
    return workload_view(raw)


def _check_owner(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the controlling owner reference. Raise ValueError unless the label names the same job: a label can be copied."""
    job = owner(raw)
    if job is None or job["uid"] != raw["metadata"]["labels"][LABEL_JOB_UID]:
        raise ValueError(f"its label {LABEL_JOB_UID} names another job than its owner reference")
    return job
