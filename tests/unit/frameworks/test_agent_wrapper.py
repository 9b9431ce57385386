"""The injected agent: what it runs, and that the pod needs no further resources."""

from typing import Any

import pytest

from tests.support.jobs import condition
from tests.support.worker_pods import EIGHT_GPUS, Json, container, worker
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType
from trainyard.frameworks.agent_wrapper import AgentImage, unused_input
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import Worker

IMAGE = AgentImage("operator:1")
ONCE, RANKS = ["/bin/sh", "/run/trainyard/start", "--once", "--"], ["/bin/sh", "/run/trainyard/start", "--"]


def pod(made: Worker) -> Json:
    spec: Json = worker_pod(made, IMAGE)["spec"]
    return spec


def command(*words: str, gpus: bool = False, **spec: Any) -> list[str]:
    """What the main container runs, in which the given words are still the last."""
    resources: Json = {"resources": EIGHT_GPUS} if gpus else {}
    main = container(command=list(words), **resources)
    made: list[str] = pod(worker(main, **spec))["containers"][0]["command"]
    return made


@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py"],
        ["python3.12", "-u", "-X", "dev", "train.py", "--launcher", "torchrun"],
        ["/opt/conda/bin/python3", "-m", "train"],
        ["python3", "-c", "import torchrun"],
        ["python"],
    ],
)
def test_python_program_runs_once_per_rank(words: list[str], *, gpus: bool) -> None:
    assert command(*words, gpus=gpus) == [*RANKS, *words]


@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "train.py"],
        ["/opt/venv/bin/torchrun", "train.py"],
        ["accelerate", "launch", "train.py"],
        ["deepspeed", "train.py"],
        ["python", "-m", "torch.distributed.run", "train.py"],
        ["python", "-W", "ignore", "/usr/bin/torchrun", "train.py"],
        ["bash", "-c", "cd /app && exec torchrun train.py"],
        ["sh", "-ec", "python -m torch.distributed.run train.py"],
        ["bash", "-c", 'mpirun -np "$N" train'],
    ],
)
def test_launcher_runs_once(words: list[str], *, gpus: bool) -> None:
    assert command(*words, gpus=gpus) == [*ONCE, *words]


@pytest.mark.parametrize("words", [["bash", "run.sh"], ["./train"]])
def test_unknown_program_runs_once_with_several_processes(words: list[str]) -> None:
    assert command(*words) == [*RANKS, *words]
    assert command(*words, gpus=True) == [*ONCE, *words]


def test_python_behind_wrapper_runs_once_per_rank() -> None:
    for words in (["env", "A=1", "python", "train.py"], ["sh", "-c", "cd /code && exec python train.py"]):
        assert command(*words, gpus=True) == [*RANKS, *words]


def test_framework_none_runs_once() -> None:
    assert command("python", "serve.py", framework="none") == [*ONCE, "python", "serve.py"]


def test_agent_in_command_keeps_its_arguments() -> None:
    for name in ("trainyard-agent", "/usr/local/bin/trainyard-agent"):
        assert command(name, "--", "bash", "run.sh", gpus=True) == [*RANKS, "bash", "run.sh"]


def test_args_stay_and_decide_the_launcher() -> None:
    main = container(command=["python"], args=["-m", "torch.distributed.run", "$(SCRIPT)"])
    made = pod(worker(main))["containers"][0]
    assert (made["command"], made["args"]) == ([*ONCE, "python"], ["-m", "torch.distributed.run", "$(SCRIPT)"])


def test_other_containers_are_unchanged() -> None:
    side = container("side", command=["python", "side.py"])
    assert pod(worker(container(command=["python"]), side))["containers"][1]["command"] == ["python", "side.py"]


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(worker(container()), id="no command"),
        pytest.param(worker(container(command=[])), id="an empty one"),
        pytest.param(worker(container(args=["train.py"])), id="arguments alone"),
        pytest.param(worker(container(command=["python"]), recovery={"agent": "none"}), id="not wanted"),
    ],
)
def test_no_agent_without_a_command(made: Worker) -> None:
    assert worker_pod(made, IMAGE) == worker_pod(made)


def test_no_agent_in_unsuitable_image() -> None:
    made = worker(container(command=["train"]))
    unfit = condition(ConditionType.AGENT_INJECTED, holds=False, reason=Reason.NO_PYTHON)
    made.job.status.conditions.append(unfit)
    assert worker_pod(made, IMAGE) == worker_pod(made)


def test_users_own_agent_is_kept() -> None:
    volume = {"volumes": [{"name": "trainyard-agent", "emptyDir": {}}]}
    made = worker(container(command=["train"]), pod=volume)
    assert worker_pod(made, IMAGE) == worker_pod(made)


def test_init_container_is_first_and_mount_read_only() -> None:
    own = [{"name": "fetch", "image": "fetch:1"}]
    main = container(command=["train"], volumeMounts=[{"name": "data", "mountPath": "/data"}])
    spec = pod(worker(main, pod={"initContainers": own, "volumes": [{"name": "data", "emptyDir": {}}]}))
    bringer, fetch = spec["initContainers"]
    assert (bringer["name"], bringer["image"], fetch["name"]) == ("trainyard-agent", "operator:1", "fetch")
    assert bringer["command"] == [
        "cp",
        "/opt/trainyard/agent/agent",
        "/opt/trainyard/agent/start",
        "/opt/trainyard/agent/probe",
        "/run/trainyard",
    ]
    assert bringer["volumeMounts"] == [{"name": "trainyard-agent", "mountPath": "/run/trainyard"}]
    mounts = spec["containers"][0]["volumeMounts"]
    assert {"name": "trainyard-agent", "mountPath": "/run/trainyard", "readOnly": True} in mounts
    assert {"name": "data", "mountPath": "/data"} in mounts
    assert {"name": "trainyard-agent", "emptyDir": {}} in spec["volumes"]


def test_image_volume_needs_no_init_container() -> None:
    spec = worker_pod(worker(container(command=["train"])), AgentImage("operator:1", as_volume=True))["spec"]
    assert "initContainers" not in spec
    assert {"name": "trainyard-agent", "image": {"reference": "operator:1"}} in spec["volumes"]
    seen = {
        "name": "trainyard-agent",
        "mountPath": "/run/trainyard",
        "subPath": "opt/trainyard/agent",
        "readOnly": True,
    }
    assert seen in spec["containers"][0]["volumeMounts"]


def test_init_container_requests_shared_resources_only() -> None:
    resources = {"limits": {"nvidia.com/gpu": 8, "memory": "9Gi"}, "requests": {"cpu": "2", "ephemeral-storage": "1Gi"}}
    (bringer,) = pod(worker(container(command=["train"], resources=resources)))["initContainers"]
    assert bringer["resources"] == {
        "limits": {"memory": "9Gi"},
        "requests": {"cpu": "2", "ephemeral-storage": "1Gi"},
    }
    (bringer,) = pod(worker(container(command=["train"])))["initContainers"]
    assert bringer["resources"] == {}


@pytest.mark.parametrize(("user", "kept"), [(None, True), (1000, True), (0, False)])
def test_init_container_is_restricted(user: int | None, *, kept: bool) -> None:
    context = {} if user is None else {"securityContext": {"runAsUser": user}}
    (bringer,) = pod(worker(container(command=["train"]), pod=context))["initContainers"]
    security = bringer["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security.get("runAsNonRoot", False) is kept


def test_termination_log_path_is_passed() -> None:
    path = "/tmp/why"  # noqa: S108 - a path in the container
    main = container(command=["train"], terminationMessagePath=path)
    variables = pod(worker(main))["containers"][0]["env"]
    assert {"name": "TRAINYARD_TERMINATION_LOG", "value": path} in variables
    own = container(command=["train"], env=[{"name": "TRAINYARD_TERMINATION_LOG", "value": "/own"}])
    names = [v["name"] for v in pod(worker(own | {"terminationMessagePath": "/x"}))["containers"][0]["env"]]
    assert names.count("TRAINYARD_TERMINATION_LOG") == 1


def test_pull_secrets_follow_those_of_the_template() -> None:
    image = AgentImage("operator:1", pull_secrets=("mirror", "own"))
    made = worker(container(command=["train"]), pod={"imagePullSecrets": [{"name": "own"}]})
    assert worker_pod(made, image)["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "mirror"}]
    assert "imagePullSecrets" not in worker_pod(worker(container()), image)["spec"]


@pytest.mark.parametrize(
    ("fields", "processes", "why"),
    [
        ({"stdin": True, "tty": True}, 2, "the main container sets stdin and tty, but none of its 2 processes reads"),
        ({"tty": True}, 2, "the main container sets tty, but"),
        ({"stdin": True}, 1, ""),
        ({"stdin": True, "command": ["torchrun", "train.py"]}, 2, ""),
        ({"stdin": True, "command": ["trainyard-agent", "--once", "python", "train.py"]}, 2, ""),
        ({"stdin": True, "command": None}, 2, ""),
        ({}, 2, ""),
    ],
)
def test_input_of_several_processes_is_unused(fields: Json, processes: int, why: str) -> None:
    made = worker(container(**{"command": ["python", "train.py"], **fields}), processesPerReplica=processes)
    found = unused_input(made)
    assert found.startswith(why)
    assert bool(found) is bool(why)
    assert not why or found.endswith("debug with kubectl exec -it train-worker-1-2")
