"""What Megatron needs beside the environment of torch, and the check of its parallel sizes."""

from typing import Any

import pytest

from tests.support.worker_pods import Json, container, environment_of, worker
from trainyard.frameworks.megatron import unfit_sizes
from trainyard.frameworks.worker_spec import Worker

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def megatron(*options: str, env: list[Json] | None = None, **spec: Any) -> Worker:
    main = container(command=["python3", "pretrain_gpt.py", *options], env=env or [])
    return worker(main, **{"framework": "megatron", "replicas": 2, "processesPerReplica": 4, **spec})


@pytest.mark.parametrize(
    ("options", "parallelism", "value"),
    [
        (["--tensor-model-parallel-size", "2"], None, "1"),
        (["--context-parallel-size=2"], None, "1"),
        ([], {"tensor": 2}, "1"),
        ([], {"context": 4}, "1"),
        ([], {"pipeline": 2}, None),
        (["--tensor-model-parallel-size", "1"], None, None),
        ([], None, None),
        (["--use-megatron-fsdp", "--tensor-model-parallel-size=2"], None, None),
        (["--use-torch-fsdp2"], {"tensor": 2}, None),
    ],
)
def test_one_connection_where_tensors_are_split(
    options: list[str], parallelism: Json | None, value: str | None
) -> None:
    spec: Json = {"parallelism": parallelism} if parallelism else {}
    made = megatron(*options, **spec)
    assert environment_of(made).get(CONNECTIONS) == value


def test_environment_is_that_of_torch() -> None:
    found = environment_of(megatron(processesPerReplica=1))
    of_torch = environment_of(megatron(processesPerReplica=1, framework="torch"))
    assert found == of_torch
    assert "MASTER_ADDR" in found


def test_users_number_of_connections_stays() -> None:
    made = megatron("--tensor-model-parallel-size=2", env=[{"name": CONNECTIONS, "value": "8"}])
    assert environment_of(made)[CONNECTIONS] == "8"


@pytest.mark.parametrize(
    ("options", "spec", "words"),
    [
        (
            ["--tensor-model-parallel-size", "4", "--pipeline-model-parallel-size=3"],
            {},
            "no multiple of 12 (--tensor-model-parallel-size 4 x --pipeline-model-parallel-size 3); change",
        ),
        (
            ["--context-parallel-size=2"],
            {"parallelism": {"tensor": 2}},
            "--context-parallel-size 2, and spec.parallelism.context is 1: set both",
        ),
        (["--tensor-model-parallel-size=8"], {}, "the 8 ranks that split a tensor are not all in one worker"),
    ],
)
def test_unfit_sizes_are_reported(options: list[str], spec: Json, words: str) -> None:
    assert words in unfit_sizes(megatron(*options, **spec))


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ([], {}),
        (["--tensor-model-parallel-size=4", "--pipeline-model-parallel-size", "2"], {}),
        (["--tensor-model-parallel-size=4"], {"parallelism": {"tensor": 4}}),
        (["--tensor-model-parallel-size=2"], {"processesPerReplica": 1}),
        (["--tensor-model-parallel-size", "$TP"], {}),
        (["--tensor-model-parallel-size"], {}),
        (["--tensor-model-parallel-size=0"], {}),
    ],
)
def test_sizes_that_fit_are_no_warning(options: list[str], spec: Json) -> None:
    assert unfit_sizes(megatron(*options, **spec)) == ""


def test_sizes_in_a_script_are_known() -> None:
    main = container(command=["sh", "-c", "cd /m && torchrun pretrain_gpt.py --tensor-model-parallel-size 3"])
    made = worker(main, framework="megatron", replicas=2, processesPerReplica=4)
    assert "no multiple of 3" in unfit_sizes(made)
