"""Which commands run once a rank, and which once a worker."""

import shlex

import pytest

from trainyard.frameworks.launch_command import reads_node_rank, starts_ranks, unwrapped


@pytest.mark.parametrize(
    "command",
    [
        "python3 train.py",
        "./train.py --lr 1",
        "env python3 train.py",
        "env -u A --chdir=/code B=1 python3 train.py",
        "timeout 600 python3 train.py",
        "timeout -s INT --kill-after 5 600 python3 train.py",
        "nice python3 train.py",
        "nice -n 5 env timeout 600 python3 train.py",
        "nohup setsid -w stdbuf -oL python3 -u train.py",
        "/usr/bin/tini -- python3 train.py",
        "taskset -c 0-3 numactl --membind=0 python3 train.py",
        "conda run -n training --no-capture-output python train.py",
        "micromamba run -p /env python -m train",
        "uv run train.py",
        "uv run --frozen --with numpy python train.py",
        "uv run -m train --lr 1",
        "poetry run python train.py",
        "sh -c 'exec python3 train.py'",
        "sh -c 'cd /code && exec python3 ranks.py'",
        "bash -euo pipefail -c 'export A=1; source /env.sh\npython3 train.py 2>&1'",
        "bash -lc 'eval \"$(conda shell.bash hook)\" && conda activate x && A=1 exec env B=2 python train.py; exit $?'",
        "timeout 9 sh -c 'nvidia-smi; python train.py --name \"a|b\" \\\n --lr 1'",
        "sh -c 'sh -c \"python train.py\"'",
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_python_behind_wrappers_runs_once_per_rank(command: str, processes: int) -> None:
    assert not starts_ranks(shlex.split(command), processes)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun train.py",
        "uv run torchrun train.py",
        "env A=1 accelerate launch train.py",
        "conda run --unknown x torchrun train.py",
        "python -m torch.distributed.run train.py",
        "python -mtorch.distributed.run train.py",
        "python -uBm torch.distributed.run train.py",
        "python /opt/lib/python3.11/site-packages/torch/distributed/run.py train.py",
        "python -m accelerate.commands.accelerate_cli launch train.py",
        "python -m deepspeed.launcher.launch train.py",
        "python -m lightning.fabric.cli run train.py",
        "python -m composer.cli.launcher train.py",
        "python -m horovod.runner train.py",
        "accelerate-launch train.py",
        "tune run recipe.py --config a.yaml",
        "python -m torchtune._cli.tune run recipe.py --config a.yaml",
        "sh -c 'pip install x && torchrun train.py | tee log'",
        "bash -c 'cd /code && exec deepspeed train.py'",
        "timeout 9 mpirun -n 2 python train.py",
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_launcher_behind_wrappers_runs_once(command: str, processes: int) -> None:
    assert starts_ranks(shlex.split(command), processes)


@pytest.mark.parametrize(
    "command",
    [
        "./train",
        "bash run.sh",
        "env -i python train.py",
        "env -S 'python train.py'",
        "timeout --unknown 3 python train.py",
        "conda python train.py",
        "sh -c 'python train.py | tee log'",
        "sh -c 'python train.py > log'",
        "sh -c 'python train.py || true'",
        "sh -c 'python train.py; echo done'",
        "sh -c 'pip install x && python train.py'",
        "sh -c 'python prepare.py && python train.py'",
        "sh -c 'python train.py & wait'",
        "sh -c 'if true; then python train.py; fi'",
        "sh -c '(python train.py)'",
        "sh -c 'python $(pick) train.py'",
        'sh -c "python train.py \'" ',
        "sh -c '# python train.py'",
        "sh -c ''",
        "sh run.sh python train.py",
        "env",
        "exec python train.py",
    ],
)
def test_uncertain_command_runs_once_with_several_processes(command: str) -> None:
    words = [*shlex.split(command)] if command.count("'") % 2 == 0 else ["sh", "-c", "python train.py '"]
    assert starts_ranks(words, 2)
    assert not starts_ranks(words, 1)


def test_wrapped_command_keeps_its_arguments() -> None:
    assert unwrapped(["env", "A=1", "nice", "-n5", "python3", "-u", "train.py"]) == ["python3", "-u", "train.py"]
    assert unwrapped(["sh", "-c", "cd /code; python3 train.py 'a b'", "name"]) == ["python3", "train.py", "a b"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["sh", "-c", "torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK train.py"], True),
        (["torchrun", "--nnodes=$(WORLD_SIZE)", "--node_rank=$(RANK)", "train.py"], True),
        (["bash", "-c", "python -m torch.distributed.run --node_rank ${RANK:-0} train.py | tee log"], True),
        (["bash", "-c", "accelerate launch --machine_rank $RANK train.py"], True),
        (["torchrun", "train.py"], False),
        (["sh", "-c", "torchrun --node_rank=$NODE_RANK train.py"], False),
        (["sh", "-c", "python train.py --rank $RANK"], False),
        (["bash", "run.sh", "$RANK"], False),
    ],
)
def test_launcher_flags_that_refer_to_rank(command: list[str], *, expected: bool) -> None:
    assert reads_node_rank(command) is expected
