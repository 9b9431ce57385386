"""Containers that admission puts into workers' pods, as meshes do: only the template's main container decides what becomes of a job."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from dev.demo.commands import Cluster
from tests.cluster.kube import IMAGE, Json, Kube, job, main_container

FOREVER = "trap 'exit 0' TERM; while :; do sleep 0.2; done"
TRAINS = "sleep 12; exit 0"
FAILS_ONCE = "[ $TRAINYARD_ATTEMPT = 2 ] || exit 1; sleep 5"
CONTAINERS = "/spec/containers/0", "/spec/containers/-"


def injected(path: str, script: str, **fields: Any) -> Json:
    """Return the policy that adds a container at this path of the pod. The first init container brings the agent."""
    kind = "initContainers" if "init" in path else "containers"
    command = f"""["sh", "-c", "{script}"]"""
    more = "".join(f", {name}: {value}" for name, value in fields.items())
    container = f"""Object.spec.{kind}{{name: "proxy", image: "{IMAGE}", command: {command}{more}}}"""
    patch = f"""[JSONPatch{{op: "add", path: "{path}", value: {container}}}]"""
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}


CASES: dict[str, tuple[str, Json]] = {
    "never-ends": (TRAINS, injected(CONTAINERS[0], FOREVER)),
    "never-ends-last": (TRAINS, injected(CONTAINERS[1], FOREVER)),
    "completes": (TRAINS, injected(CONTAINERS[0], "sleep 1; exit 0")),
    "fails": (TRAINS, injected(CONTAINERS[0], "sleep 1; exit 1")),
    "asks-for-a-restart": (TRAINS, injected(CONTAINERS[0], "sleep 1; exit 88")),
    "native-sidecar": (TRAINS, injected("/spec/initContainers/0", FOREVER, restartPolicy='"Always"')),
    "program-fails": ("sleep 2; exit 3", injected(CONTAINERS[0], FOREVER)),
    "restart-in-place": (FAILS_ONCE, injected(CONTAINERS[0], FOREVER)),
    "init-fails": (TRAINS, injected("/spec/initContainers/-", "exit 127")),
}


@pytest.fixture(scope="module")
def kube(cluster: Cluster) -> Iterator[Kube]:
    """A namespace with all jobs, each with the policy that its pods' label names."""
    name = f"t-{secrets.token_hex(4)}"
    cluster.kube("create", "namespace", name)
    made = Kube(cluster, name)
    for case, (_, mutation) in CASES.items():
        made.apply(*policy(name, case, mutation))
    # A policy applies a moment after it was written: a pod without a proxy would show nothing.
    made.until(lambda: proxied(made, [*CASES][-1]), 30, "the policies to apply")
    made.apply(*(of_case(case, script) for case, (script, _) in CASES.items()))
    yield made
    for kind in ("mutatingadmissionpolicybinding", "mutatingadmissionpolicy"):
        cluster.kube("delete", kind, *(f"{name}-{case}" for case in CASES))
    cluster.kube("delete", "namespace", name, "--wait=false")


def policy(namespace: str, case: str, mutation: Json) -> list[Json]:
    api = "admissionregistration.k8s.io/v1"
    name = f"{namespace}-{case}"
    pods = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    chosen = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {"matchLabels": {"case": case}},
        "resourceRules": pods,
    }
    spec = {"reinvocationPolicy": "Never", "failurePolicy": "Fail", "matchConstraints": chosen, "mutations": [mutation]}
    return [
        {"apiVersion": api, "kind": "MutatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": api,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name},
        },
    ]


def of_case(case: str, script: str) -> Json:
    replicas = 2 if case == "never-ends" else 1
    budget = 1 if case == "restart-in-place" else 0
    manifest = job(case, replicas=replicas, script=script, recovery={"maxRestarts": budget})
    manifest["spec"]["template"]["metadata"] = {"labels": {"case": case}}
    main_container(manifest)["name"] = "trainer"
    return manifest


def proxied(kube: Kube, case: str) -> bool:
    """Return whether a pod of this case would get its proxy."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "labels": {"case": case}},
        "spec": {name: [{"name": name.lower(), "image": IMAGE}] for name in ("containers", "initContainers")},
    }
    made = json.loads(kube.run("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(manifest)))
    return any(c["name"] == "proxy" for kind in manifest["spec"] for c in made["spec"][kind])


@pytest.mark.parametrize(
    "case", ["never-ends", "never-ends-last", "completes", "fails", "asks-for-a-restart", "native-sidecar"]
)
def test_job_completes_with_its_program_alone(kube: Kube, case: str) -> None:
    status = kube.wait_phase(case, "Complete", 90)
    assert (status["attempt"], status["restartCount"]) == (1, 0)
    if case.startswith("never-ends"):
        kube.until(lambda: not kube.pods(case), 40, "the pods of a proxy that never ends to be removed")


def test_failed_program_fails_its_job_beside_a_proxy(kube: Kube) -> None:
    status = kube.wait_phase("program-fails", "Failed", 60)
    assert (status["restarts"]["failures"], status["lastFailure"]["exitCode"]) == (1, 3)


def test_processes_restart_in_place_behind_a_proxy(kube: Kube) -> None:
    status = kube.wait_phase("restart-in-place", "Complete", 60)
    assert (status["attempt"], status["restarts"]["failures"]) == (2, 1)
    assert "restarting processes in place" in kube.run("get", "events", "--field-selector", "reason=WorkerFailed")


def test_failed_init_container_of_admission_is_not_counted(kube: Kube) -> None:
    kube.until(lambda: kube.status("init-fails").get("attempt", 0) > 1, 60, "another attempt")
    status = kube.status("init-fails")
    assert (status["restarts"]["failures"], "lastFailure" in status) == (0, False)
    assert "the template has no init container proxy" in kube.run("get", "events")
