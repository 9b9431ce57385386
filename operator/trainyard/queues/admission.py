"""Read the admission of a Workload: what its flavors and admission checks give to the pods of each role. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from trainyard.api.constants import ROLE_WORKER
from trainyard.api.internal_status import Admission, AdmittedPods
from trainyard.domain.state.snapshot import Snapshot
from trainyard.domain.state.workload import Assignment, WorkloadView
from trainyard.frameworks.worker_spec import Json, Worker
from trainyard.queues.workload import KUEUE

LABEL_POD_SET = f"{KUEUE}/podset"


class UnusableAdmissionError(Exception):
    """No pod can be created from the admission; the message says why."""


def needs_reading(snapshot: Snapshot) -> WorkloadView | None:
    """Return the Workload whose admission is not stored yet; None where there is nothing to read."""
    workload = snapshot.queueing.workload if snapshot.queueing else None
    if snapshot.job.queue is None or workload is None or not workload.admitted:
        return None
    stored = snapshot.job.status.internal.admission
    return None if stored is not None and stored.uid == workload.uid else workload


def flavor_names(workload: WorkloadView) -> Sequence[str]:
    """Return the ResourceFlavors that the admission names, each once."""
    return [*dict.fromkeys(flavor for each in workload.assignments for flavor in each.flavors)]


def read_admission(workload: WorkloadView, flavors: Mapping[str, Json | None]) -> Admission:
    """Return the admission. `flavors`: the ResourceFlavors by name; None for one that does not exist.

    Raises UnusableAdmissionError.
    """
    try:
        return Admission(
            workload=workload.name,
            uid=workload.uid,
            cluster_queue=workload.cluster_queue,
            pods=[_admitted(each, workload, flavors) for each in workload.assignments],
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UnusableAdmissionError(f"the admission of Workload {workload.name}: {where}: {first['msg']}") from error


def _admitted(assigned: Assignment, workload: WorkloadView, flavors: Mapping[str, Json | None]) -> AdmittedPods:
    labels, annotations, selector = {LABEL_POD_SET: assigned.role}, dict[str, str](), dict[str, str]()
    tolerations: list[Json] = []
    if assigned.has_topology:
        raise UnusableAdmissionError(
            f"Kueue has chosen nodes by a Topology for Workload {workload.name}, and the operator does not support that"
            " yet; use a ResourceFlavor without topologyName"
        )
    for name in assigned.flavors:
        flavor = flavors.get(name)
        if flavor is None:
            raise UnusableAdmissionError(
                f"the ResourceFlavor {name} does not exist, which Workload {workload.name} names"
            )
        spec: Json = flavor.get("spec") or {}
        selector |= spec.get("nodeLabels") or {}
        tolerations += spec.get("tolerations") or []
    for check in workload.checks:
        for update in check.updates:
            if update.get("name") != assigned.role:
                continue
            source = f"admission check {check.name}"
            _merge(labels, update.get("labels"), source)
            _merge(annotations, update.get("annotations"), source)
            _merge(selector, update.get("nodeSelector"), source)
            tolerations += update.get("tolerations") or []
    return AdmittedPods(
        role=assigned.role,
        count=assigned.count,
        labels=labels,
        annotations=annotations,
        node_selector=selector,
        tolerations=_once(tolerations),
    )


def _merge(into: dict[str, str], more: Mapping[str, str] | None, source: str) -> None:
    """Add these entries. Raises UnusableAdmissionError where one has another value already."""
    for name, value in (more or {}).items():
        if into.setdefault(name, value) != value:
            raise UnusableAdmissionError(f"{source} sets {name} to {value}, and it is {into[name]} already")


def conflicts(snapshot: Snapshot, admission: Admission) -> str:
    """Return how the admission contradicts the pods of the job; empty where it does not."""
    for pods in admission.pods:
        index = next((i for i in (0, *snapshot.job.role_members) if Worker.role_of(i) == pods.role), None)
        if index is None:
            return f"the job has no role {pods.role}"
        template = snapshot.job.of_member(index).spec.template["spec"]
        own = template.get("nodeSelector") or {}
        for name, value in pods.node_selector.items():
            if own.get(name, value) != value:
                who = "the workers" if pods.role == ROLE_WORKER else f"the role {pods.role}"
                return f"nodeSelector of {who} has {name}: {own[name]}, and the queue admitted {value}"
    return ""


def with_admission(worker: Worker, pod: Json) -> Json:
    """Return the pod with what was admitted for its role. The user's own values are kept: they do not contradict it."""
    admission = worker.job.status.internal.admission
    admitted = admission.of_role(worker.role) if admission else None
    if admitted is None:
        return pod
    metadata, spec = pod["metadata"], pod["spec"]
    own = spec.get("tolerations") or []
    changed: Json = {"tolerations": _once([*own, *admitted.tolerations])} if own or admitted.tolerations else {}
    if admitted.node_selector:
        changed["nodeSelector"] = {**admitted.node_selector, **(spec.get("nodeSelector") or {})}
    return {
        **pod,
        "metadata": {
            **metadata,
            "labels": {**admitted.labels, **metadata["labels"]},
            "annotations": {**admitted.annotations, **metadata["annotations"]},
        },
        "spec": {**spec, **changed},
    }


def _once(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries without repetitions, in their order."""
    return [entry for position, entry in enumerate(entries) if entry not in entries[:position]]
