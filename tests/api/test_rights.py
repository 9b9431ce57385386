"""Each permission of the chart, withdrawn for a while. The error is reported and counted, nothing crashes, and work goes on when it is granted."""

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import ACCOUNT, CERTIFICATE, HOME, Plane
from tests.api.process import Operator, coordinator, operator
from tests.support.control_plane import free_port
from tests.support.granted_permissions import (
    CERTIFICATE as CERTIFICATE_GRANTS,
    ELECTION,
    OPERATOR,
    ROLES,
    without_name,
)
from tests.support.polling import until
from tests.unit.helm.chart import Chart, Manifest, Release

Right = tuple[str, str, str]
"""Group, resource and verb, as a role has them."""
NUMBERS = itertools.count(1)
ALONE = {"leader_election": "false"}


@dataclass
class Stage:
    """One right that is missing, until `heal`."""

    plane: Plane
    lab: Namespace
    release: Release
    right: Right
    job: str = field(default_factory=lambda: f"job-{next(NUMBERS)}")
    running: ExitStack = field(default_factory=ExitStack)

    def roles(self) -> list[Manifest]:
        return [self.release.one(*name) for name in ROLES]

    def deny(self, *rights: Right) -> None:
        for role in self.roles():
            kept: Any = copy.deepcopy(role)
            for group, resource, verb in rights:
                for rule in kept["rules"]:
                    if group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]:
                        rule["verbs"].remove(verb)
            kept["rules"] = [rule for rule in kept["rules"] if rule["verbs"]]
            self.plane.grant(kept)

    def heal(self) -> None:
        for role in self.roles():
            self.plane.grant(role)

    def start(self, **settings: str) -> Operator:
        """An operator, not waited for: it may never be ready."""
        made = Operator(self.plane, f"operator-{next(NUMBERS)}", **settings)
        self.running.callback(made.end)
        until(lambda: made.get("healthz")[0], 60, "its port")
        return made

    def start_ready(self) -> Operator:
        return self.running.enter_context(operator(self.plane, f"operator-{next(NUMBERS)}", **ALONE))

    def counted(self, op: Operator) -> bool:
        group, resource, verb = self.right
        plural, _, subresource = resource.partition("/")
        name = ".".join(part for part in (plural, group) if part) + (f"/{subresource}" if subresource else "")
        return f'trainyard_forbidden_requests_total{{resource="{name}",verb="{verb}"}}' in op.get("metrics")[1]

    def reported(self, kind: str, *, words: str = "") -> None:
        """The condition says it, and so does an event."""
        _, resource, verb = self.right
        words = words or f'cannot {verb} resource "{resource}"'
        until(
            lambda: self.lab.condition(kind, self.job).get("reason") == "PermissionDenied",
            20,
            f"the condition {kind} to tell of {self.right}",
        )
        assert words in self.lab.condition(kind, self.job)["message"]
        until(lambda: any(words in note for note in self.lab.events("PermissionDenied", self.job)), 10, "the event")


def creating(stage: Stage) -> None:
    op = stage.start_ready()
    stage.lab.submit(stage.job)
    stage.reported("Running")
    assert stage.counted(op)
    stage.heal()
    stage.lab.until_phase("Running", stage.job)


def owning(stage: Stage) -> None:
    """Only where an admission plugin looks at owner references, as on OpenShift."""
    stage.start_ready()
    stage.lab.submit(stage.job)
    stage.reported("Running", words="cannot set blockOwnerDeletion")
    stage.heal()
    stage.lab.until_phase("Running", stage.job)


def finding(stage: Stage) -> None:
    """Something with the wanted name is there: whose is it?"""
    plural = stage.right[1]
    kinds = {"pods": ("Pod", f"{stage.job}-worker-0-1"), "services": ("Service", stage.job)}
    specs = {"pods": {"containers": [{"name": "x", "image": "x:1"}]}, "services": {"ports": [{"port": 80}]}}
    kind, name = kinds[plural]
    manifest = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": specs[plural]}
    stage.plane.call("POST", f"/api/v1/namespaces/lab/{plural}", manifest)
    op = stage.start_ready()
    stage.lab.submit(stage.job)
    stage.reported("Running")
    assert stage.counted(op)
    stage.heal()
    until(
        lambda: stage.lab.condition("Running", stage.job).get("reason") == "NameConflict",
        30,
        "the operator to find whose it is",
    )
    stage.plane.forget(f"/api/v1/namespaces/lab/{plural}/{name}")
    stage.lab.until_phase("Running", stage.job)


def deleting_pods(stage: Stage) -> None:
    op = stage.start_ready()
    stage.lab.submit(stage.job)
    stage.lab.until_phase("Running", stage.job)
    stage.lab.ends(f"{stage.job}-worker-1-1", 3)
    stage.reported("Running")
    assert stage.counted(op)
    assert set(stage.lab.pods(stage.job)) == {f"{stage.job}-worker-{i}-1" for i in range(2)}
    stage.heal()
    stage.lab.until_phase("Running", stage.job)
    assert stage.lab.status(stage.job)["restarts"]["failures"] == 1


def stopping_pods(stage: Stage) -> None:
    """Workers of a failed job keep their pods with the permission; without it they are deleted, with their logs."""
    op = stage.start_ready()
    stage.lab.submit(stage.job, recovery={"maxRestarts": 0})
    stage.lab.until_phase("Running", stage.job)
    stage.lab.ends(f"{stage.job}-worker-1-1", 3)
    stage.lab.until_phase("Failed", stage.job)
    until(lambda: set(stage.lab.pods(stage.job)) == {f"{stage.job}-worker-1-1"}, 30, "the running pod to be deleted")
    assert stage.counted(op)


def deleting_jobs(stage: Stage) -> None:
    op = stage.start_ready()
    stage.lab.submit(stage.job, replicas=1, lifecycle={"ttlSecondsAfterFinished": 0})
    stage.lab.until_phase("Running", stage.job)
    stage.lab.ends(f"{stage.job}-worker-0-1", 0)
    stage.reported("Stalled")
    assert stage.counted(op)
    stage.heal()
    until(lambda: not stage.lab.job(stage.job), 30, "the job to go")


def writing_the_status(stage: Stage) -> None:
    op = stage.start_ready()
    stage.lab.submit(stage.job)
    words = 'cannot update resource "trainingjobs/status"'
    until(lambda: any(words in note for note in stage.lab.events("PermissionDenied", stage.job)), 20, "the event")
    assert stage.counted(op)
    stage.heal()
    stage.lab.until_phase("Running", stage.job, within=70)


def reading_again(stage: Stage) -> None:
    """After a conflict, which a user who changes the job all the time soon brings about."""
    op = stage.start_ready()
    stage.lab.submit(stage.job)
    changes = itertools.count()

    def conflict() -> bool:
        for number in itertools.islice(changes, 20):
            stage.lab.change(stage.job, lifecycle={"suspend": number % 2 == 0})
        return stage.counted(op)

    until(conflict, 60, "the metric")
    stage.heal()
    before = len(stage.plane.requests())

    def read() -> bool:
        conflict()
        what = ("get", "trainingjobs.trainyard.dev", 200)
        return any((each.verb, each.resource, each.code) == what for each in stage.plane.requests()[before:])

    until(read, 60, "a job to be read again")
    stage.lab.change(stage.job, lifecycle={"suspend": False})
    stage.lab.until_phase("Running", stage.job, within=70)


def writing_events(stage: Stage) -> None:
    op = stage.start_ready()
    stage.lab.submit(stage.job)
    stage.lab.until_phase("Running", stage.job)
    until(lambda: stage.counted(op), 10, "the metric")
    stage.heal()
    stage.lab.ends(f"{stage.job}-worker-0-1", 3)
    until(lambda: stage.lab.events("WorkerFailed", stage.job), 20, "an event")


def reading_events(stage: Stage) -> None:
    """Of a pod that waits for a volume: without them, the condition still names the pod."""
    stage.lab.runs = False
    try:
        op = stage.start_ready()
        stage.lab.submit(stage.job, replicas=1)
        pod = f"{stage.job}-worker-0-1"
        until(lambda: pod in stage.lab.pods(stage.job), 20, "the pod")
        stage.lab.bind(pod)
        note = 'MountVolume.SetUp failed for volume "conf" : configmap "conf" not found'
        stage.lab.report_event(pod, "FailedMount", note)
        until(lambda: stage.counted(op), 40, "the metric")
        assert f"see the events of pod {pod}" in stage.lab.condition("Running", stage.job)["message"]
        stage.heal()
        until(lambda: note in stage.lab.condition("Running", stage.job)["message"], 90, "the volume to be named")
        assert any(note in event for event in stage.lab.events("VolumeMountFailed", stage.job))
    finally:
        stage.lab.runs = True
    stage.lab.until_phase("Running", stage.job)


def repeating_events(stage: Stage) -> None:
    """The one event that comes again and again is that of a status that cannot be written, also after a restart."""
    stage.deny(stage.right, ("trainyard.dev", "trainingjobs/status", "update"))
    first = stage.start_ready()
    stage.lab.submit(stage.job)
    until(lambda: stage.lab.events("PermissionDenied", stage.job), 20, "the event")
    first.end()
    op = stage.start_ready()
    until(lambda: stage.counted(op), 30, "the metric")
    stage.heal()
    stage.lab.until_phase("Running", stage.job, within=70)


def watching(stage: Stage) -> None:
    group, resource, verb = stage.right
    name = f"{resource}.{group}" if group else resource
    op = stage.start(**ALONE)
    sentence = (
        f"the operator may not {verb} {name} in all namespaces: grant its service account the verb {verb} on {name}"
    )
    until(lambda: sentence in op.get("readyz")[1], 20, f"readiness to tell of {stage.right}")
    assert op.get("readyz")[0] == 503
    assert op.get("healthz")[0] == 200
    assert stage.counted(op)
    stage.heal()
    stage.lab.submit(stage.job)
    stage.lab.until_phase("Running", stage.job, within=60)
    until(lambda: op.get("readyz")[0] == 200, 40, "readiness")


def electing(stage: Stage) -> None:
    verb = stage.right[2]
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "trainyard"}}
    if verb == "update":
        stage.plane.call("POST", f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases", lease)
    op = stage.start()
    name = "leases.coordination.k8s.io"
    sentence = f"the operator may not {verb} {name} in the namespace {HOME}: grant its service account the verb {verb}"
    until(lambda: sentence in op.get("readyz")[1], 20, f"readiness to tell of {stage.right}")
    assert stage.counted(op)
    stage.heal()
    until(lambda: op.leads, 20, "it to lead")
    until(lambda: op.get("readyz")[0] == 200, 10, "readiness")


def issuing_certificates(stage: Stage) -> None:
    """Pods get the authority when they are created, so the operator does not lead without a certificate."""
    verb = stage.right[2]
    stage.plane.empty_secret()
    op = stage.start(**ALONE, **coordinator(free_port()))
    words = f'cannot {verb} resource "secrets"'
    until(lambda: words in op.get("readyz")[1], 20, f"readiness to tell of {stage.right}")
    assert "the coordinator has no certificate" in op.get("readyz")[1]
    assert op.get("readyz")[0] == 503
    assert op.get("healthz")[0] == 200
    assert stage.counted(op)
    stage.heal()
    until(lambda: op.get("readyz")[0] == 200, 60, "readiness")
    assert stage.plane.certificate()


PLAYS: dict[Right, Callable[[Stage], None]] = {
    ("", "pods", "create"): creating,
    ("", "services", "create"): creating,
    ("trainyard.dev", "trainingjobs/finalizers", "update"): owning,
    ("", "pods", "get"): finding,
    ("", "services", "get"): finding,
    ("", "pods", "delete"): deleting_pods,
    ("", "pods", "patch"): stopping_pods,
    ("trainyard.dev", "trainingjobs", "delete"): deleting_jobs,
    ("trainyard.dev", "trainingjobs/status", "update"): writing_the_status,
    ("trainyard.dev", "trainingjobs", "get"): reading_again,
    ("events.k8s.io", "events", "create"): writing_events,
    ("events.k8s.io", "events", "list"): reading_events,
    ("events.k8s.io", "events", "get"): repeating_events,
    ("events.k8s.io", "events", "patch"): repeating_events,
    **{("", what, verb): watching for what in ("pods", "services") for verb in ("list", "watch")},
    **{("trainyard.dev", "trainingjobs", verb): watching for verb in ("list", "watch")},
    **{("", "secrets", verb): issuing_certificates for verb in ("get", "update")},
    **{("coordination.k8s.io", "leases", verb): electing for verb in ("get", "update", "create")},
}


@contextmanager
def a_stage(plane: Plane, lab: Namespace, chart: Chart, right: Right) -> Iterator[Stage]:
    stage = Stage(plane, lab, chart.render(), right)
    stage.deny(right)
    try:
        with stage.running:
            yield stage
    finally:
        stage.heal()
        lab.remove(stage.job)


def test_no_right_of_the_chart_is_left_out() -> None:
    granted = {
        (group, without_name(resource), verb)
        for grants in (OPERATOR, ELECTION, CERTIFICATE_GRANTS)
        for (group, resource), verbs in grants.items()
        for verb in verbs
    }
    assert set(PLAYS) == granted


@pytest.mark.usefixtures("granted")
@pytest.mark.parametrize("right", PLAYS, ids="-".join)
def test_a_right_that_is_missing_for_a_while(plane: Plane, lab: Namespace, chart: Chart, right: Right) -> None:
    before = len(plane.requests())
    with a_stage(plane, lab, chart, right) as stage:
        PLAYS[right](stage)
        logs = [path for path in plane.folder.glob("operator-*.log") if "Traceback" in path.read_text()]
        assert logs == [], logs[0].read_text()
    refused = [request for request in plane.requests()[before:] if request.code == 403]
    assert 0 < len(refused) < 60, "it is tried again, and not at full speed"


@pytest.mark.usefixtures("granted")
@pytest.mark.parametrize(
    ("verb", "name", "namespace", "allowed"),
    [
        ("get", CERTIFICATE, HOME, True),
        ("update", CERTIFICATE, HOME, True),
        *((verb, CERTIFICATE, HOME, False) for verb in ("create", "delete", "list", "watch", "patch")),
        *(
            (verb, name, HOME, False)
            for verb in ("get", "update")
            for name in ("other", "trainyard-coordinator-tls", "")
        ),
        *((verb, CERTIFICATE, "lab", False) for verb in ("get", "update")),
        ("list", "", "", False),
    ],
)
def test_the_right_to_secrets_covers_one_name(
    plane: Plane, verb: str, name: str, namespace: str, *, allowed: bool
) -> None:
    about = {"verb": verb, "resource": "secrets", "name": name, "namespace": namespace}
    spec = {"user": f"system:serviceaccount:{HOME}:{ACCOUNT}", "resourceAttributes": about}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = plane.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer["status"]["allowed"] is allowed
