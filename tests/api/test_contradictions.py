"""Jobs that contradict themselves: the API server or an event names the field and the fix."""

from functools import partial
from typing import Any

import pytest

from tests.api.nodes import Namespace
from tests.api.plane import Plane
from tests.api.process import operator
from tests.support.control_plane import RefusedError
from tests.support.polling import until

TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["python3", "t.py"]}]}}


def template(command: str, **env: str) -> dict[str, Any]:
    main = {"name": "main", "image": "x", "command": command.split()}
    return {"spec": {"containers": [{**main, "env": [{"name": name, "value": value} for name, value in env.items()]}]}}


@pytest.mark.parametrize("framework", ["lightgbm", "mpi", "horovod"])
def test_frameworks_with_addresses_need_the_agent(lab: Namespace, framework: str) -> None:
    with pytest.raises(RefusedError, match=r"spec.recovery.agent.*need the agent.*leave recovery.agent out"):
        lab.submit("odd", framework=framework, template=TEMPLATE, recovery={"agent": "none"})


@pytest.mark.parametrize("framework", ["lightgbm", "mpi", "horovod"])
def test_what_the_agent_runs_must_be_known(lab: Namespace, framework: str) -> None:
    """Without it no agent is injected, and each worker would start a group of its own."""
    image = {"spec": {"containers": [{"name": "main", "image": "x", "args": ["mpirun", "python3", "t.py"]}]}}
    with pytest.raises(
        RefusedError, match=r"spec.template: .*agent runs the command of the first container.*set command"
    ):
        lab.submit("odd", framework=framework, template=image)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"framework": "mpi"}, "spec.scheduling.rankOrder.*ranks follow the indexes of workers; leave .*rankOrder out"),
        ({"framework": "none"}, "ranks follow the indexes of workers"),
        ({"recovery": {"agent": "none"}}, "the agents of the workers wait for the order of ranks; leave"),
        ({"scheduling": {"rankOrder": "rack"}}, "scheduling.rankOrder: Unsupported value: .*rack.*placement.*index"),
    ],
)
def test_order_of_ranks_needs_agents_and_ranks(lab: Namespace, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        lab.submit("odd", **{"template": TEMPLATE, "scheduling": {"rankOrder": "placement"}, **spec})


def test_order_of_ranks_can_be_chosen(lab: Namespace) -> None:
    by_placement = {each: {"rankOrder": "placement"} for each in ("torch", "deepspeed", "megatron", "jax", "horovod")}
    for framework, chosen in {**by_placement, "mpi": {"rankOrder": "index"}, "none": {}}.items():
        lab.submit("ordered", framework=framework, template=TEMPLATE, scheduling=chosen)
        lab.remove("ordered")
    lab.submit("ordered", framework="none", template=TEMPLATE, recovery={"agent": "none"}, scheduling={})
    lab.remove("ordered")


CASES = (
    (
        "slots",
        {"framework": "mpi", "template": template("mpirun -np 8 python3 t.py")},
        "InvalidSpec",
        "mpirun is to start 8 ranks (-np 8), and the job has 4 slots (replicas x processesPerReplica: 2 x 2): change",
    ),
    (
        "hosts",
        {"framework": "mpi", "template": template("mpirun --hostfile h python3 t.py")},
        "InvalidSpec",
        "mpirun gets hosts of its own (--hostfile h): leave the option out",
    ),
    (
        "scheduler",
        {"framework": "mpi", "template": template("mpirun python3 t.py", SLURM_JOB_ID="1")},
        "UserEnvironmentPreserved",
        "the template sets SLURM_JOB_ID; these are kept and may not fit the real group",
    ),
    (
        "foreign",
        {"framework": "torch", "template": template("python3 t.py", TF_CONFIG="{}")},
        "UserEnvironmentPreserved",
        "the template sets TF_CONFIG, by which the framework tensorflow finds its group, and spec.framework is torch: set",
    ),
    (
        "nodes",
        {"framework": "torch", "template": template("torchrun --nnodes 4 t.py")},
        "InvalidSpec",
        "the command has --nnodes 4, and the job has replicas 2: leave --nnodes out",
    ),
    (
        "role",
        {
            "framework": "ray",
            "processesPerReplica": 1,
            "roles": [{"name": "head", "command": ["horovodrun", "-np", "4", "python3", "t.py"]}],
            "template": template("python3 t.py"),
        },
        "InvalidSpec",
        "horovodrun reaches other workers by ssh alone: make the program itself the command (python3 train.py)",
    ),
    (
        "of-role",
        {
            "framework": "ray",
            "processesPerReplica": 1,
            "roles": [{"name": "head", "env": [{"name": "RAY_ADDRESS", "value": "ray://other:10001"}]}],
            "template": template("python3 t.py"),
        },
        "UserEnvironmentPreserved",
        "the role head sets RAY_ADDRESS; these are kept and may not fit the real group",
    ),
    (
        "own",
        {"framework": "tensorflow", "processesPerReplica": 1, "template": template("python3 t.py", TF_CONFIG="{}")},
        "UserEnvironmentPreserved",
        "the template sets TF_CONFIG; these are kept and may not fit the real group: remove them from env",
    ),
)
"""The name of a job, its spec, the reason of the event, and what it says."""
PLAIN = {"framework": "mpi", "template": template("mpirun python3 t.py")}


def test_contradictions_are_events(plane: Plane, granted: None, lab: Namespace) -> None:
    with operator(plane, "contradictions") as running:
        for name, spec, _, _ in (*CASES, ("plain", PLAIN, "", "")):
            lab.submit(name, **{"replicas": 2, "processesPerReplica": 2, **spec})
        for name, _, reason, note in CASES:
            until(partial(lab.events, reason, name), 30, f"an event {reason} of {name}")
            assert any(note in each for each in lab.events(reason, name)), lab.events(reason, name)
        until(lambda: lab.events("WorkersCreated", "plain"), 30, "the workers")
        assert [*lab.events("InvalidSpec", "plain"), *lab.events("UserEnvironmentPreserved", "plain")] == []
        assert not running.bugs()
    for name in ("plain", *(case[0] for case in CASES)):
        lab.remove(name)
