"""The chart's policies for authors on a real API server: a user without permissions gains none by a TrainingJob."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.guard import (
    AUTHOR,
    GUARDED,
    HARMLESS,
    MERGE,
    POLICIES,
    STUDENT,
    Json,
    guard,
    job,
    refused,
    role,
    submit,
)
from tests.api.plane import HOME, JOBS, Plane
from tests.support.control_plane import RefusedError
from tests.support.polling import until
from tests.unit.helm.chart import Chart


@pytest.fixture(scope="module")
def guarded(plane: Plane, chart: Chart) -> Iterator[Plane]:
    with guard(plane, chart) as made:
        yield made


def test_writing_jobs_requires_permission_to_create_pods(guarded: Plane) -> None:
    assert not refused(guarded, AUTHOR)
    assert "student may not create pods in guarded: ask for a role that may" in refused(guarded, STUDENT)


def test_changing_a_template_requires_permission_to_create_pods(guarded: Plane) -> None:
    place = f"{JOBS}/namespaces/{GUARDED}/trainingjobs"
    manifest = job("theirs")
    # Only then may anybody change its template.
    manifest["spec"]["lifecycle"] = {"suspend": True}
    guarded.call("POST", place, manifest, user=AUTHOR)
    one = f"{place}/theirs"
    try:
        with pytest.raises(RefusedError, match="student may not create pods"):
            guarded.call("PATCH", one, {"spec": {"replicas": 5}}, MERGE, user=STUDENT)
        with pytest.raises(RefusedError, match="student may not create pods"):
            guarded.call("PATCH", one, {"spec": {"network": {"profile": "rdma"}}}, MERGE, user=STUDENT)
        guarded.call("PATCH", one, {"metadata": {"labels": {"team": "b"}}}, MERGE, user=STUDENT)
        guarded.call("PATCH", one, {"spec": {"replicas": 2}}, MERGE, user=AUTHOR)
        changed = {"spec": {"template": {"spec": {"hostNetwork": True}}}}
        with pytest.raises(RefusedError, match="hostNetwork"):
            guarded.call("PATCH", one, changed, MERGE, user=AUTHOR)
    finally:
        guarded.forget(one)


def test_changing_a_role_requires_permission_to_create_pods(guarded: Plane) -> None:
    place = f"{JOBS}/namespaces/{GUARDED}/trainingjobs"
    manifest = job("cast")
    manifest["spec"] |= {"framework": "tensorflow", "roles": [{"name": "chief"}], "lifecycle": {"suspend": True}}
    guarded.call("POST", place, manifest, user=AUTHOR)
    one = f"{place}/cast"
    try:
        for changed in ([{"name": "chief", "image": "example.com/other:1"}], None):
            with pytest.raises(RefusedError, match="student may not create pods"):
                guarded.call("PATCH", one, {"spec": {"roles": changed}}, MERGE, user=STUDENT)
        for odd in ({"hostPath": {"path": "/"}}, {"nfs": {"server": "10.0.0.1", "path": "/"}}):
            roles = [{"name": "chief", "volumes": [{"name": "odd", **odd}]}]
            with pytest.raises(RefusedError, match=r"roles\[\].volumes"):
                guarded.call("PATCH", one, {"spec": {"roles": roles}}, MERGE, user=AUTHOR)
        harmless = [{"name": "chief", "volumes": [{"name": "scratch", "emptyDir": {}}]}]
        guarded.call("PATCH", one, {"spec": {"roles": harmless}}, MERGE, user=AUTHOR)
    finally:
        guarded.forget(one)


CONTEXT: Json = HARMLESS["containers"][0]["securityContext"]


def with_context(**more: Any) -> Json:
    """A pod whose container has this in its security context."""
    return {"containers": [{**HARMLESS["containers"][0], "securityContext": {**CONTEXT, **more}}]}


def with_pod_context(**more: Any) -> Json:
    return {"securityContext": {**HARMLESS["securityContext"], **more}}


def with_volume(**source: Any) -> Json:
    return {"volumes": [{"name": "odd", **source}]}


def beside(**container: Any) -> Json:
    """A pod whose first container is harmless, and whose init container is not."""
    made = {"name": "first", "image": "example.com/tool:1", **container}
    return {"initContainers": [{**made, "securityContext": {**CONTEXT, **made.get("securityContext", {})}}]}


def with_probe(name: str, **handler: Any) -> Json:
    return {"containers": [{**HARMLESS["containers"][0], name: handler}]}


ESCALATIONS: list[tuple[str, Json, str]] = [
    ("the node's network", {"hostNetwork": True}, "hostNetwork"),
    ("the node's processes", {"hostPID": True}, "hostPID"),
    ("the node's shared memory", {"hostIPC": True}, "hostIPC"),
    ("the node's root", with_volume(hostPath={"path": "/"}), "hostPath is refused"),
    ("a socket of the node", with_volume(hostPath={"path": "/run/c.sock", "type": "Socket"}), "hostPath is refused"),
    ("privileged", with_context(privileged=True, allowPrivilegeEscalation=True), "privileged is refused"),
    ("privileged, before the start", beside(securityContext={"privileged": True}), "privileged is refused"),
    ("all capabilities", with_context(capabilities={"drop": ["ALL"], "add": ["ALL"]}), "capabilities.add"),
    ("SYS_ADMIN", with_context(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}), "capabilities.add"),
    ("NET_RAW", beside(securityContext={"capabilities": {"drop": ["ALL"], "add": ["NET_RAW"]}}), "capabilities.add"),
    ("CHOWN", with_context(capabilities={"drop": ["ALL"], "add": ["CHOWN"]}), "NET_BIND_SERVICE alone"),
    ("capabilities kept", with_context(capabilities={"drop": ["NET_RAW"]}), "drop must have ALL"),
    ("a port of the node", beside(ports=[{"containerPort": 80, "hostPort": 80}]), "hostPort is refused"),
    ("no seccomp", with_pod_context(seccompProfile={"type": "Unconfined"}), "seccompProfile.type"),
    ("no seccomp in one", with_context(seccompProfile={"type": "Unconfined"}), "seccompProfile.type"),
    ("no seccomp at all", {"securityContext": {"runAsNonRoot": True}}, "seccompProfile must be given"),
    ("no AppArmor", with_pod_context(appArmorProfile={"type": "Unconfined"}), "appArmorProfile.type"),
    ("another SELinux type", with_pod_context(seLinuxOptions={"type": "spc_t"}), "seLinuxOptions"),
    ("an SELinux user", with_context(seLinuxOptions={"user": "system_u"}), "seLinuxOptions"),
    ("an open /proc", with_context(procMount="Unmasked"), "procMount"),
    ("a sysctl", with_pod_context(sysctls=[{"name": "kernel.msgmax", "value": "1"}]), "sysctls"),
    ("Windows' host", with_pod_context(windowsOptions={"hostProcess": True}), "hostProcess"),
    ("a way up", with_context(allowPrivilegeEscalation=True), "allowPrivilegeEscalation must be false"),
    ("a way up that is not closed", with_context(allowPrivilegeEscalation=None), "allowPrivilegeEscalation must be"),
    ("root", with_pod_context(runAsUser=0), "runAsUser must not be 0"),
    ("root in one", with_context(runAsUser=0), "runAsUser must not be 0"),
    ("perhaps root", with_pod_context(runAsNonRoot=None), "runAsNonRoot must be true"),
    ("root allowed in one", with_context(runAsNonRoot=False), "runAsNonRoot must be true"),
    ("another kind of volume", with_volume(nfs={"server": "10.0.0.1", "path": "/"}), "roles[].volumes: only"),
    ("a disk", with_volume(iscsi={"targetPortal": "10.0.0.1", "iqn": "iqn", "lun": 0}), "roles[].volumes: only"),
    ("a probe elsewhere", with_probe("livenessProbe", httpGet={"host": "169.254.169.254", "port": 80}), "the host of probes"),
    ("a look elsewhere", with_probe("readinessProbe", tcpSocket={"host": "10.0.0.1", "port": 80}), "the host of probes"),
    ("a start elsewhere", with_probe("startupProbe", tcpSocket={"host": "10.0.0.1", "port": 80}), "the host of probes"),
    ("a hook elsewhere", beside(lifecycle={"preStop": {"httpGet": {"host": "10.0.0.1", "port": 80}}}), "the host of probes"),
    ("a first hook elsewhere", beside(lifecycle={"postStart": {"tcpSocket": {"host": "a", "port": 80}}}), "the host of probes"),
    ("somebody's account", {"serviceAccountName": "deployer"}, "author may not have workers run as deployer"),
    ("by its older name", {"serviceAccount": "deployer"}, "author may not have workers run as deployer"),
    ("by both", {"serviceAccountName": "", "serviceAccount": "deployer"}, "author may not have workers run as deployer"),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "message"), [each[1:] for each in ESCALATIONS], ids=[each[0] for each in ESCALATIONS])
def test_template_violating_pod_security_names_field_and_fix(guarded: Plane, pod: Json, message: str) -> None:
    rejection = refused(guarded, AUTHOR, **pod)
    assert rejection.startswith(("422", "403")), rejection
    assert message in rejection


def test_apparmor_is_not_turned_off_by_an_annotation(guarded: Plane) -> None:
    manifest = job()
    name = "container.apparmor.security.beta.kubernetes.io/main"
    manifest["spec"]["template"]["metadata"] = {"annotations": {name: "unconfined"}}
    with pytest.raises(RefusedError, match="AppArmor may not be turned off"):
        submit(guarded, AUTHOR, manifest)
    manifest["spec"]["template"]["metadata"]["annotations"] = {name: "runtime/default", "other": "unconfined"}
    submit(guarded, AUTHOR, manifest)


def test_a_template_does_not_pose_as_another_jobs(guarded: Plane) -> None:
    manifest = job()
    for label in ("job-name", "job-uid", "index"):
        manifest["spec"]["template"]["metadata"] = {"labels": {"team": "a", f"trainyard.dev/{label}": "victim"}}
        with pytest.raises(RefusedError, match=r"labels of trainyard\.dev are reserved for the operator"):
            submit(guarded, AUTHOR, manifest)
    manifest["spec"]["template"]["metadata"] = {"labels": {"team": "a"}}
    submit(guarded, AUTHOR, manifest)


def test_a_template_does_not_pose_as_the_operator(guarded: Plane) -> None:
    name = "app.kubernetes.io"
    labels = {f"{name}/name": "trainyard", f"{name}/instance": "trainyard", f"{name}/component": "operator"}
    manifest = job()
    manifest["spec"]["template"]["metadata"] = {"labels": labels}
    submit(guarded, AUTHOR, manifest)
    with pytest.raises(RefusedError, match="a worker must not have the labels of the operator"):
        guarded.call("POST", f"{JOBS}/namespaces/{HOME}/trainingjobs?dryRun=All", manifest)
    manifest["spec"]["template"]["metadata"] = {"labels": {**labels, f"{name}/component": "worker"}}
    guarded.call("POST", f"{JOBS}/namespaces/{HOME}/trainingjobs?dryRun=All", manifest)


def test_harmless_probes_and_an_empty_account_are_taken(guarded: Plane) -> None:
    assert not refused(guarded, AUTHOR, **with_probe("livenessProbe", httpGet={"port": 80, "path": "/"}))
    assert not refused(guarded, AUTHOR, serviceAccountName="")


def test_job_can_be_stopped_without_permission_for_pods(guarded: Plane) -> None:
    """A queue may write jobs and no pods, and a job may be older than the policy."""
    binding = f"{POLICIES}/validatingadmissionpolicybindings/trainyard-pods"
    kept = guarded.call("GET", binding)
    guarded.forget(binding)
    until(lambda: not refused(guarded, AUTHOR, hostNetwork=True), 30, "templates not to be looked at")
    place = f"{JOBS}/namespaces/{GUARDED}/trainingjobs"
    manifest = job("old", hostNetwork=True)
    manifest["spec"]["replicas"] = 3
    guarded.call("POST", place, manifest, user=AUTHOR)
    again = {name: value for name, value in kept["metadata"].items() if name in {"name", "labels"}}
    guarded.call("POST", f"{POLICIES}/validatingadmissionpolicybindings", {**kept, "metadata": again})
    until(lambda: refused(guarded, AUTHOR, hostNetwork=True), 30, "templates to be looked at again")
    one = f"{place}/old"
    try:
        spec: Json
        for spec in ({"recovery": {"maxRestarts": 0}}, {"replicas": 2}, {"lifecycle": {"suspend": True}}):
            guarded.call("PATCH", one, {"spec": spec}, MERGE, user=STUDENT)
        for spec in (
            {"replicas": 3},
            {"lifecycle": {"suspend": False}},
            {"template": {"metadata": {"labels": {"a": "b"}}}},
        ):
            with pytest.raises(RefusedError, match=r"student may not create pods|hostNetwork"):
                guarded.call("PATCH", one, {"spec": spec}, MERGE, user=STUDENT)
            with pytest.raises(RefusedError, match="hostNetwork"):
                guarded.call("PATCH", one, {"spec": spec}, MERGE, user=AUTHOR)
    finally:
        guarded.forget(one)


def test_a_million_workers_are_too_many(guarded: Plane) -> None:
    manifest = job()
    manifest["spec"]["replicas"] = 10**6
    with pytest.raises(RefusedError, match=r"spec\.replicas"):
        submit(guarded, AUTHOR, manifest)


def test_service_account_requires_permission_to_use_it(guarded: Plane) -> None:
    for manifest in role("borrows", [AUTHOR], "", ["serviceaccounts"], ["use"]):
        guarded.grant(manifest)
    until(lambda: not refused(guarded, AUTHOR, serviceAccountName="deployer"), 10, "the permission to count")
    guarded.forget(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{GUARDED}/rolebindings/borrows")


def test_switching_the_controller_is_refused(guarded: Plane) -> None:
    """A template of another controller, which no policy of pods has looked at, would become this operator's."""
    place = f"{JOBS}/namespaces/{GUARDED}/trainingjobs"
    manifest = job("foreign")
    manifest["spec"]["managedBy"] = "example.com/other"
    guarded.call("POST", place, manifest, user=AUTHOR)
    try:
        for spec in ({"managedBy": None}, {"managedBy": "trainyard.dev/operator"}):
            for user, message in (
                (STUDENT, "may not create pods|managedBy cannot"),
                (AUTHOR, "managedBy cannot be changed"),
            ):
                with pytest.raises(RefusedError, match=message):
                    guarded.call("PATCH", f"{place}/foreign", {"spec": spec}, MERGE, user=user)
    finally:
        guarded.forget(f"{place}/foreign")
