"""A job that no retry can repair ends with the fix, an obstacle to a pod's start is named, and a success outlives its pod."""

from collections.abc import Iterator
from typing import Any

import pytest

from dev.demo.commands import Cluster
from tests.cluster.kube import Json, Kube, job, main_container

USER = {"runAsNonRoot": True, "runAsUser": 1000}
TRAINS = """
import os, sys, time
for second in range(3 if os.environ["TRAINYARD_REPLICA_INDEX"] == "0" else 35):
    print("attempt", os.environ["TRAINYARD_ATTEMPT"], "second", second, flush=True)
    time.sleep(1)
"""


def python(name: str, program: str, **spec: Any) -> Json:
    manifest = job(name, replicas=1, framework="torch", **spec)
    main_container(manifest)["command"] = ["python3", "-c", program]
    return manifest


def direct(name: str, *command: str, **container: Any) -> Json:
    """A job whose container runs this command, without a shell and without the agent."""
    manifest = job(name, replicas=1, recovery={"agent": "none"})
    manifest["spec"]["template"]["spec"]["securityContext"] = USER
    main_container(manifest).update({"command": list(command), **container})
    return manifest


def with_image_command(name: str) -> Json:
    """A job that gives arguments alone: the image's own command is replaced, and is not known to the operator."""
    manifest = job(name, replicas=1)
    del main_container(manifest)["command"]
    main_container(manifest)["args"] = ["train-model"]
    return manifest


def with_volume(name: str, volume: Json) -> Json:
    manifest = job(name)
    manifest["spec"]["template"]["spec"]["volumes"] = [{"name": "conf", **volume}]
    main_container(manifest)["volumeMounts"] = [{"name": "conf", "mountPath": "/conf"}]
    return manifest


def with_unknown_format(manifest: Json) -> Json:
    """Let the command be a file that is no program: without `#!`, and executable."""
    volume = {"name": "job", "configMap": {"name": "programs", "defaultMode": 0o755}}
    manifest["spec"]["template"]["spec"]["volumes"] = [volume]
    main_container(manifest)["volumeMounts"] = [{"name": "job", "mountPath": "/job"}]
    return manifest


def success_without_pod() -> Json:
    manifest = python("succeeds", TRAINS)
    manifest["spec"]["replicas"] = 2
    return manifest


JOBS = [
    success_without_pod(),
    direct("no-command", "train-model", "--epochs", "1"),
    with_image_command("no-argument"),
    direct("file-as-folder", "python3", "-c", "pass", workingDir="/etc/hostname"),
    with_unknown_format(direct("wrong-format", "/job/train")),
    direct("no-x-bit", "/etc/hostname"),
    python("no-module", "import no_such_module_of_mine"),
    python("no-syntax", "def train(:"),
    with_volume("no-config", {"configMap": {"name": "missing"}}),
    with_volume("no-key", {"secret": {"secretName": "half", "items": [{"key": "absent", "path": "a"}]}}),
]
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "half"}, "stringData": {"present": "x"}}
PROGRAMS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "programs"}, "data": {"train": "no program"}}


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> Iterator[Kube]:
    """All jobs of this file, in one namespace."""
    cluster.kube("create", "namespace", "obstacles")
    made = Kube(cluster, "obstacles")
    made.apply(SECRET, PROGRAMS, *JOBS)
    yield made
    cluster.kube("delete", "namespace", "obstacles", "--wait=false")


def test_success_outlives_its_pod(jobs: Kube) -> None:
    jobs.until(lambda: jobs.status("succeeds").get("internal", {}).get("succeeded"), 60, "worker 0 to succeed")
    other = jobs.uids("succeeds")["succeeds-worker-1-1"]
    jobs.run("delete", "pod", "succeeds-worker-0-1")
    status = jobs.wait_phase("succeeds", "Complete", 90)
    assert jobs.uids("succeeds") == {"succeeds-worker-1-1": other}
    assert (status["attempt"], status["restartCount"]) == (1, 0)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no-command", ["train-model", "correct command"]),
        ("no-argument", ["train-model", "correct command"]),
        ("file-as-folder", ["/etc/hostname", "correct workingDir"]),
        ("wrong-format", ["/job/train", "architecture"]),
        ("no-x-bit", ["/etc/hostname", "chmod +x"]),
    ],
)
def test_container_that_cannot_start_fails_at_once(jobs: Kube, name: str, words: list[str]) -> None:
    status = jobs.wait_phase(name, "Failed", 60)
    failed = jobs.condition(name, "Failed")
    assert (status["attempt"], failed["reason"]) == (1, "NonRetryable")
    assert all(word in failed["message"] for word in words), failed["message"]


@pytest.mark.parametrize(
    ("name", "words", "attempts"),
    [("no-module", ["no_such_module_of_mine", "PYTHONPATH"], {3, 4, 5}), ("no-syntax", ["SyntaxError"], {3})],
)
def test_repeated_exception_ends_the_job(jobs: Kube, name: str, words: list[str], attempts: set[int]) -> None:
    status = jobs.wait_phase(name, "Failed", 120)
    failed = jobs.condition(name, "Failed")
    assert failed["reason"] == "NonRetryable"
    assert status["attempt"] in attempts
    assert all(word in failed["message"] for word in words), failed["message"]


@pytest.mark.parametrize(
    ("name", "word"), [("no-config", 'configmap "missing" not found'), ("no-key", "references non-existent secret key")]
)
def test_volume_that_cannot_be_mounted_is_named(jobs: Kube, name: str, word: str) -> None:
    def named() -> bool:
        running = jobs.condition(name, "Running")
        return running.get("reason") == "VolumeMountFailed" and word in running["message"]

    def reported() -> bool:
        events = [each["message"] for each in jobs.find_all("events") if each["reason"] == "VolumeMountFailed"]
        return any(word in note for note in events)

    jobs.until(named, 90, "the volume to be named")
    jobs.until(reported, 10, "the event")
