"""The agent in a worker's pod: what it runs, and that bringing it costs the pod nothing else."""

from typing import Any

import pytest

from tests.support.jobs import condition
from tests.unit.frameworks.building import EIGHT_GPUS, Json, container, worker
from trainyard.api.reasons import Reason
from trainyard.api.status import ConditionType
from trainyard.frameworks.agent_wrapper import Source
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import Worker

IMAGE = Source("operator:1")
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
def test_a_python_program_is_run_once_for_each_rank(words: list[str], *, gpus: bool) -> None:
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
def test_what_starts_the_ranks_itself_is_run_once(words: list[str], *, gpus: bool) -> None:
    assert command(*words, gpus=gpus) == [*ONCE, *words]


@pytest.mark.parametrize("words", [["bash", "run.sh"], ["./train"], ["env", "A=1", "python", "train.py"]])
def test_of_an_unknown_program_somebody_must_start_several_ranks(words: list[str]) -> None:
    assert command(*words) == [*RANKS, *words]
    assert command(*words, gpus=True) == [*ONCE, *words]


def test_what_has_no_ranks_is_run_once() -> None:
    assert command("python", "serve.py", framework="none") == [*ONCE, "python", "serve.py"]


def test_the_agent_as_a_command_is_this_one_with_its_own_arguments() -> None:
    for name in ("trainyard-agent", "/usr/local/bin/trainyard-agent"):
        assert command(name, "--", "bash", "run.sh", gpus=True) == [*RANKS, "bash", "run.sh"]


def test_arguments_stay_arguments_and_count_for_what_is_run() -> None:
    main = container(command=["python"], args=["-m", "torch.distributed.run", "$(SCRIPT)"])
    made = pod(worker(main))["containers"][0]
    assert (made["command"], made["args"]) == ([*ONCE, "python"], ["-m", "torch.distributed.run", "$(SCRIPT)"])


def test_other_containers_run_as_they_are() -> None:
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
def test_without_anything_to_wrap_the_pod_is_as_without_the_agent(made: Worker) -> None:
    assert worker_pod(made, IMAGE) == worker_pod(made)


def test_in_an_image_where_it_cannot_run_it_is_left_out() -> None:
    made = worker(container(command=["train"]))
    unfit = condition(ConditionType.AGENT_INJECTED, holds=False, reason=Reason.NO_PYTHON)
    made.job.status.conditions.append(unfit)
    assert worker_pod(made, IMAGE) == worker_pod(made)


def test_who_brings_one_keeps_it() -> None:
    volume = {"volumes": [{"name": "trainyard-agent", "emptyDir": {}}]}
    made = worker(container(command=["train"]), pod=volume)
    assert worker_pod(made, IMAGE) == worker_pod(made)


def test_it_comes_first_and_into_a_folder_that_the_program_cannot_write() -> None:
    own = [{"name": "fetch", "image": "fetch:1"}]
    main = container(command=["train"], volumeMounts=[{"name": "data", "mountPath": "/data"}])
    spec = pod(worker(main, pod={"initContainers": own, "volumes": [{"name": "data", "emptyDir": {}}]}))
    bringer, fetch = spec["initContainers"]
    assert (bringer["name"], bringer["image"], fetch["name"]) == ("trainyard-agent", "operator:1", "fetch")
    assert bringer["command"] == ["cp", "/opt/trainyard/agent/agent", "/opt/trainyard/agent/start", "/run/trainyard"]
    assert bringer["volumeMounts"] == [{"name": "trainyard-agent", "mountPath": "/run/trainyard"}]
    mounts = spec["containers"][0]["volumeMounts"]
    assert {"name": "trainyard-agent", "mountPath": "/run/trainyard", "readOnly": True} in mounts
    assert {"name": "data", "mountPath": "/data"} in mounts
    assert {"name": "trainyard-agent", "emptyDir": {}} in spec["volumes"]


def test_as_a_volume_it_needs_no_container() -> None:
    spec = worker_pod(worker(container(command=["train"])), Source("operator:1", as_volume=True))["spec"]
    assert "initContainers" not in spec
    assert {"name": "trainyard-agent", "image": {"reference": "operator:1"}} in spec["volumes"]
    seen = {
        "name": "trainyard-agent",
        "mountPath": "/run/trainyard",
        "subPath": "opt/trainyard/agent",
        "readOnly": True,
    }
    assert seen in spec["containers"][0]["volumeMounts"]


def test_it_asks_for_no_more_than_the_main_container_and_for_no_gpu() -> None:
    resources = {"limits": {"nvidia.com/gpu": 8, "memory": "9Gi"}, "requests": {"cpu": "2", "ephemeral-storage": "1Gi"}}
    (bringer,) = pod(worker(container(command=["train"], resources=resources)))["initContainers"]
    assert bringer["resources"] == {
        "limits": {"memory": "9Gi"},
        "requests": {"cpu": "2", "ephemeral-storage": "1Gi"},
    }
    (bringer,) = pod(worker(container(command=["train"])))["initContainers"]
    assert bringer["resources"] == {}


@pytest.mark.parametrize(("user", "kept"), [(None, True), (1000, True), (0, False)])
def test_it_is_restricted_and_never_root_unless_the_pod_is(user: int | None, *, kept: bool) -> None:
    context = {} if user is None else {"securityContext": {"runAsUser": user}}
    (bringer,) = pod(worker(container(command=["train"]), pod=context))["initContainers"]
    security = bringer["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security.get("runAsNonRoot", False) is kept


def test_it_writes_where_the_kubelet_looks() -> None:
    path = "/tmp/why"  # noqa: S108 - a path in the container
    main = container(command=["train"], terminationMessagePath=path)
    variables = pod(worker(main))["containers"][0]["env"]
    assert {"name": "TRAINYARD_TERMINATION_LOG", "value": path} in variables
    own = container(command=["train"], env=[{"name": "TRAINYARD_TERMINATION_LOG", "value": "/own"}])
    names = [v["name"] for v in pod(worker(own | {"terminationMessagePath": "/x"}))["containers"][0]["env"]]
    assert names.count("TRAINYARD_TERMINATION_LOG") == 1
