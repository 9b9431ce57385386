"""A container that can never start fails the job at once, with the fix; other start errors are retried."""

import pytest

from tests.support.jobs import NOW, TEMPLATE, job
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType as C, Phase
from trainyard.domain.plan import plan
from trainyard.domain.recovery.start_errors import start_fix
from trainyard.domain.state.termination import Exit

RUNC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable to start container process: error during container init: "
)
WITH_INIT = {"spec": {**TEMPLATE["spec"], "initContainers": [{"name": "prepare", "image": "tools:1"}]}}
NEVER = [
    pytest.param(RUNC + 'exec: "train-model": executable file not found in $PATH', "correct command", id="command"),
    pytest.param(
        RUNC + 'exec: "python t.py --name \\"a b\\"": executable file not found in $PATH', "each word", id="one string"
    ),
    pytest.param(
        RUNC + f'exec: "python t.py{" --a=1" * 60}": executable file not found in $PATH', "each word", id="long string"
    ),
    pytest.param(RUNC + 'exec: "/t.py/x": stat /t.py/x: not a directory', "correct command", id="below a file"),
    pytest.param(
        RUNC + f'exec: "/{"a" * 300}": stat /{"a" * 300}: file name too long', "correct command", id="long name"
    ),
    pytest.param(RUNC + "unable to find user me: no matching entries in passwd file", "runAsUser", id="user"),
    pytest.param(RUNC + 'exec: "/opt/t": stat /opt/t: no such file or directory', "correct command", id="path"),
    pytest.param(
        "crun: executable file `train-model` not found in $PATH: No such file or directory", "image", id="crun"
    ),
    pytest.param(RUNC + 'exec: "/job/train.sh": permission denied', "chmod +x", id="no x bit"),
    pytest.param(RUNC + 'exec: "/opt": is a directory', "chmod +x", id="directory"),
    pytest.param(
        RUNC + 'chdir to cwd ("/root/none") set in config.json failed: permission denied', "workingDir", id="workingDir"
    ),
    pytest.param(RUNC + "mkdir /etc/hostname: not a directory", "workingDir", id="workingDir is a file"),
    pytest.param(RUNC + "exec /usr/bin/train: exec format error", "architecture", id="architecture"),
    pytest.param(RUNC + "exec /bin/sh: argument list too long", "ConfigMap", id="arguments"),
]
MAYBE = [
    pytest.param(
        RUNC
        + "error running hook #0: exit status 1, stderr: nvidia-container-cli: initialization error: driver rpc error",
        id="driver",
    ),
    pytest.param(RUNC + "write /sys/fs/cgroup/kubepods/x/memory.max: no such file or directory", id="cgroup"),
    pytest.param("failed to create shim task: context deadline exceeded", id="timeout"),
    pytest.param(RUNC + 'error mounting "/a" to rootfs at "/b": permission denied', id="mount"),
]


@pytest.mark.parametrize("init", [None, "prepare"])
@pytest.mark.parametrize(("message", "fix"), NEVER)
def test_container_that_can_never_start_fails_at_once(message: str, fix: str, init: str | None) -> None:
    scene = job(3, template=WITH_INIT).running()
    ended = scene.failed(1, exit_code=128, reason="StartError", message=message, init_container=init)
    status = plan(ended.snapshot, NOW).status
    failed = status.condition(C.FAILED)
    assert failed is not None
    assert (status.phase, failed.reason) == (Phase.FAILED, Reason.NON_RETRYABLE)
    assert fix in failed.message
    # A long one loses its end.
    assert message[-40:] in failed.message or len(message) > 400


@pytest.mark.parametrize("message", MAYBE)
def test_other_start_errors_are_retried(message: str) -> None:
    ended = job(3).running().failed(1, exit_code=128, reason="StartError", message=message)
    assert plan(ended.snapshot, NOW).status.attempt == 2


@pytest.mark.parametrize(
    ("message", "phase"),
    [
        ("exec /job/train.sh: exec format error", Phase.FAILED),
        ("standard_init_linux.go:228: exec user process caused: exec format error", Phase.FAILED),
        ("exec /job/train.sh: no such file or directory", Phase.FAILED),
        ("loading\nexec /job/train.sh: exec format error", Phase.RESTARTING),
        ("exec format error", Phase.RESTARTING),
    ],
)
def test_refusal_after_the_start_is_the_whole_log(message: str, phase: Phase) -> None:
    ended = job(1).running().failed(0, exit_code=255, reason="Error", message=message)
    assert plan(ended.snapshot, NOW).status.phase is phase


@pytest.mark.parametrize(("code", "has_fix"), [(0, False), (255, True)])
def test_successful_exit_needs_no_fix(code: int, *, has_fix: bool) -> None:
    assert bool(start_fix(Exit(NOW, code, "Other", "exec /job/train.sh: exec format error"))) is has_fix


def test_rule_of_the_user_wins() -> None:
    rules = {"rules": [{"action": "Restart", "reasons": ["StartError"]}]}
    message = RUNC + 'exec: "train-model": executable file not found in $PATH'
    ended = job(1, recovery=rules).running().failed(0, exit_code=128, reason="StartError", message=message)
    assert plan(ended.snapshot, NOW).status.attempt == 2


CRIO = "container create failed: executable file `train-model` not found in $PATH: No such file or directory"


@pytest.mark.parametrize(
    ("reason", "message", "phase"),
    [
        ("CreateContainerError", CRIO, Phase.FAILED),
        ("RunContainerError", RUNC + 'exec: "/job/train.sh": permission denied', Phase.FAILED),
        ("CreateContainerError", "context deadline exceeded", Phase.PENDING),
        ("CreateContainerConfigError", 'configmap "a" not found', Phase.PENDING),
        ("ErrImagePull", "chdir to cwd", Phase.PENDING),
    ],
)
def test_container_that_its_node_creates_in_vain(reason: str, message: str, phase: Phase) -> None:
    waiting = job(2).created().waiting(1, reason, message).pod(1, node="node1")
    status = plan(waiting.snapshot, NOW).status
    assert status.phase is phase
    failed = status.condition(C.FAILED)
    if failed is not None:
        assert failed.reason == Reason.NON_RETRYABLE
        assert failed.message.startswith(
            f"pod train-worker-1-1 on node1: {reason}: {message}; no restart can fix this: "
        )
