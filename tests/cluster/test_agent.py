"""The injected agent: in images that do not contain it, around launchers, and in images where it cannot run."""

from typing import Any

import pytest

from dev.demo import install
from tests.cluster.kube import Json, Kube, job, main_container

FOREIGN = "localhost/trainyard/operator:dev"
"""An image that has a Python, and no agent where a program would look for it."""
BOOM = """
import os
if os.environ["RANK"] == "1" and os.environ["TRAINYARD_ATTEMPT"] == "1":
    raise ValueError("boom")
"""


def running(*command: str, replicas: int = 1, image: str | None = None, **spec: Any) -> Json:
    manifest = job(replicas=replicas, **{"framework": "torch", **spec})
    main = main_container(manifest)
    main["command"] = list(command)
    main["image"] = image or main["image"]
    return manifest


def hide(manifest: Json, path: str) -> None:
    """Mount an empty folder over one of the image."""
    manifest["spec"]["template"]["spec"]["volumes"] = [{"name": "nothing", "emptyDir": {}}]
    main_container(manifest)["volumeMounts"] = [{"name": "nothing", "mountPath": path}]


def test_agent_is_injected_into_any_image(kube: Kube) -> None:
    kube.apply(running("python3", "-c", BOOM, replicas=1, image=FOREIGN, processesPerReplica=2))
    status = kube.wait_phase("job", "Complete", 120)
    assert (status["attempt"], status["restarts"]["failures"]) == (2, 1)
    assert status["lastFailure"]["message"].startswith("rank 1 exited with code 1: ValueError: boom\nTraceback")
    assert kube.condition("job", "AgentInjected") == {}, "as expected, and so not worth a word"
    (pod,) = kube.pods("job")
    assert [each["name"] for each in pod["spec"]["initContainers"]] == ["trainyard-agent"]


def test_chart_can_mount_the_agent_as_image_volume(kube: Kube) -> None:
    install.install(kube.cluster, "--set", "agent.imageVolume=true")
    try:
        kube.apply(running("python3", "-c", BOOM, image=FOREIGN, processesPerReplica=2))
        status = kube.wait_phase("job", "Complete", 120)
    finally:
        install.install(kube.cluster)
    assert status["lastFailure"]["message"].startswith("rank 1 exited with code 1: ValueError: boom\nTraceback")
    (pod,) = kube.pods("job")
    assert "initContainers" not in pod["spec"]


def test_launcher_failure_reports_the_traceback_of_its_rank(kube: Kube) -> None:
    script = f"cat > /tmp/t.py <<'E'\n{BOOM}\nE\ntorchrun /tmp/t.py"
    kube.apply(running("sh", "-c", script, processesPerReplica=2))
    status = kube.wait_phase("job", "Complete", 180)
    message = status["lastFailure"]["message"]
    assert message.startswith("the command exited with code 1: ValueError: boom\nTraceback")
    assert "ChildFailedError" not in message
    assert "the command exited with code 1: ValueError: boom" in kube.run("get", "events")


@pytest.mark.parametrize("replicas", [1, 3])
def test_image_without_python_runs_without_agent(kube: Kube, replicas: int) -> None:
    manifest = running("/bin/true", replicas=replicas)
    main_container(manifest)["env"] = [{"name": "PATH", "value": "/nowhere"}]
    kube.apply(manifest)
    status = kube.wait_phase("job", "Complete", 120)
    assert (status["attempt"], status["restarts"]) == (2, {"failures": 0, "disruptions": 0, "resizes": 0})
    injected = kube.condition("job", "AgentInjected")
    assert (injected["status"], injected["reason"]) == ("False", "NoPython")
    assert injected["message"].startswith("there is no Python 3.9 or newer on the PATH of this image, so that")
    assert all("initContainers" not in pod["spec"] for pod in kube.pods("job"))
    assert "NoPython" in kube.run("get", "events")


def test_image_without_shell_runs_without_agent(kube: Kube) -> None:
    manifest = running("/lib64/ld-linux-x86-64.so.2", "--version")
    hide(manifest, "/usr/bin")
    kube.apply(manifest)
    status = kube.wait_phase("job", "Complete", 120)
    assert (status["attempt"], status["restarts"]["failures"]) == (2, 0)
    injected = kube.condition("job", "AgentInjected")
    assert (injected["reason"], injected["message"].partition(",")[0]) == (
        "NoPython",
        "there is no /bin/sh in this image",
    )


def test_job_without_command_reports_that_agent_is_disabled(kube: Kube) -> None:
    manifest = running()
    del main_container(manifest)["command"]
    kube.apply(manifest)
    kube.wait_phase("job", "Complete", 120)
    assert kube.condition("job", "AgentInjected")["reason"] == "NoCommand"


def test_agent_can_be_disabled(kube: Kube) -> None:
    kube.apply(running("sh", "-c", "exit 0", recovery={"agent": "none"}))
    kube.wait_phase("job", "Complete", 120)
    (pod,) = kube.pods("job")
    assert "initContainers" not in pod["spec"]
    assert pod["spec"]["containers"][0]["command"] == ["sh", "-c", "exit 0"]
    assert kube.condition("job", "AgentInjected") == {}
