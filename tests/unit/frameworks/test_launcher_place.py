"""Launchers that get no place of the worker."""

from typing import Any

import pytest

from tests.support.worker_pods import Json, container, worker
from trainyard.frameworks.launcher_place import unplaced_launcher

IN_SHELL = ["sh", "-c", "pip install x && fabric run --accelerator cuda train.py"]


def found(command: list[str] | None, *, has_agent: bool = True, args: list[str] | None = None, **spec: Any) -> str:
    main: Json = {name: words for name, words in (("command", command), ("args", args)) if words}
    return unplaced_launcher(worker(container(**main), **spec), has_agent=has_agent)


def test_fabric_in_shell_is_reported_with_options() -> None:
    note = found(IN_SHELL, processesPerReplica=4)
    assert note.startswith("fabric run starts a group of its own in each of the 3 workers: make it the command itself")
    assert "--devices=4 --num-nodes=$PET_NNODES --node-rank=$NODE_RANK --main-address=$MASTER_ADDR" in note


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", "lightning run model train.py"],
        ["sh", "-c", "python -m lightning_fabric.cli train.py"],
        ["sh", "-c", "exec python -m lightning.fabric.cli train.py"],
    ],
)
def test_each_way_to_start_it_is_known(command: list[str]) -> None:
    assert "starts a group of its own" in found(command)


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        (["fabric", "run", "train.py"], {}),
        (["env", "A=1", "fabric", "run", "train.py"], {}),
        (["sh", "-c", "fabric run --num-nodes=3 --node-rank=$NODE_RANK train.py"], {}),
        (["sh", "-c", "torchrun train.py"], {}),
        (["sh", "-c", "accelerate launch train.py"], {}),
        (IN_SHELL, {"framework": "none"}),
        (IN_SHELL, {"replicas": 1}),
    ],
)
def test_other_commands_are_no_warning(command: list[str], spec: Json) -> None:
    assert found(command, **spec) == ""


def test_fabric_without_the_agent_is_reported() -> None:
    words = ["fabric", "run", "train.py"]
    assert found(words, has_agent=False)
    assert found(words, recovery={"agent": "none"})
    assert found(None, args=words)
