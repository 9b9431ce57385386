"""The place of a worker, in the command of a launcher."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.unit.agent.agent_process import AgentProcess
from tests.unit.agent.rank_scripts import WARM_START_OFF
from trainyard_agent.launchers import placed
from trainyard_agent.ranks import Place

ADDRESS = {"MASTER_ADDR": "job-worker-0.job", "MASTER_PORT": "29500"}
ACCELERATE = "--machine_rank 1 --main_process_ip job-worker-0.job --main_process_port 29500 --deepspeed_multinode_launcher standard"
NO_PORT = (
    "--num_machines 2 --num_processes 8 --main_process_ip job-worker-0.job --deepspeed_multinode_launcher standard"
)
FABRIC = "--node_rank=1 --main_address=job-worker-0.job --main_port=29500"


def of(command: str, workers: int = 2, processes: int = 4, **environment: str) -> str:
    """The command that worker 1 runs."""
    found = placed(
        shlex.split(command), {**ADDRESS, **environment}, Place(min(1, workers - 1), workers, processes, 1, "")
    )
    return shlex.join(found.words) if found else command


@pytest.mark.parametrize(
    ("command", "started"),
    [
        ("accelerate launch t.py", f"accelerate launch --num_machines 2 --num_processes 8 {ACCELERATE} t.py"),
        ("accelerate-launch t.py", f"accelerate-launch --num_machines 2 --num_processes 8 {ACCELERATE} t.py"),
        (
            "accelerate launch --multi_gpu --num-processes 4 -m t --num_processes 9",
            f"accelerate launch --num_machines 2 --num_processes 8 {ACCELERATE} --multi_gpu -m t --num_processes 9",
        ),
        (
            "accelerate launch --num_processes=8 t.py",
            f"accelerate launch --num_machines 2 --num_processes 8 {ACCELERATE} t.py",
        ),
        (
            "accelerate launch --num_processes 2 t.py",
            f"accelerate launch --num_machines 2 --num_processes 4 {ACCELERATE} t.py",
        ),
        (
            "accelerate launch --num_machines 2 --num_processes 6 t.py",
            f"accelerate launch {ACCELERATE} --num_machines 2 --num_processes 6 t.py",
        ),
        (
            "accelerate launch --config_file c.yaml --main-process-port 7 --machine_rank 1 t.py",
            f"accelerate launch {NO_PORT} --config_file c.yaml --main-process-port 7 --machine_rank 1 t.py",
        ),
        ("fabric run t.py", f"fabric run --devices=4 --num_nodes=2 {FABRIC} t.py"),
        (
            "lightning run model --devices 2 t.py --num_nodes 7",
            f"lightning run model --num_nodes=2 {FABRIC} --devices 2 t.py --num_nodes 7",
        ),
        (
            "fabric run --num-nodes=2 --node-rank 1 t.py",
            "fabric run --devices=4 --main_address=job-worker-0.job --main_port=29500 --num-nodes=2 --node-rank 1 t.py",
        ),
        ("tune run r.py --config c.yaml", "tune run --nproc_per_node=4 r.py --config c.yaml"),
    ],
)
def test_launcher_gets_what_the_user_has_not_given(command: str, started: str) -> None:
    assert of(command) == started


@pytest.mark.parametrize(
    ("before", "options"),
    [
        ("python3 -m accelerate.commands.launch", "--num_machines 2 --num_processes 8 " + ACCELERATE),
        ("python3 -m accelerate.commands.accelerate_cli launch", "--num_machines 2 --num_processes 8 " + ACCELERATE),
        ("/usr/bin/python3 /opt/bin/accelerate launch", "--num_machines 2 --num_processes 8 " + ACCELERATE),
        ("env A=1 /opt/bin/accelerate launch", "--num_machines 2 --num_processes 8 " + ACCELERATE),
        ("timeout 9 python -m lightning.fabric.cli", "--devices=4 --num_nodes=2 " + FABRIC),
        ("python -m lightning.fabric.cli run", "--devices=4 --num_nodes=2 " + FABRIC),
        ("uv run fabric run", "--devices=4 --num_nodes=2 " + FABRIC),
        ("python -m torchtune._cli.tune run", "--nproc_per_node=4"),
    ],
)
def test_each_start_of_a_launcher_is_known(before: str, options: str) -> None:
    assert of(f"{before} t.py") == f"{before} {options} t.py"


@pytest.mark.parametrize(
    "command",
    [
        "torchrun t.py",
        "python t.py fabric run",
        "python -m fabric run t.py",
        "env A=1 python t.py fabric run",
        "sh -c 'accelerate launch t.py'",
        "accelerate test",
        "accelerate",
        "python -m",
        "accelerate launch --num_machines 1 t.py",
        "accelerate launch --num_processes many t.py",
        "accelerate launch --tpu t.py",
        "accelerate launch --mpirun_hostfile hosts t.py",
        "fabric run --num-nodes 1 t.py",
        "fabric consolidate folder",
        "tune run --nnodes 1 r.py",
        "tune run",
        "tune ls",
    ],
)
def test_other_commands_stay(command: str) -> None:
    assert of(command) == command


@pytest.mark.parametrize("command", ["accelerate launch t.py", "fabric run t.py", "tune run r.py"])
def test_a_command_stays_where_there_is_no_place(command: str) -> None:
    assert of(command, MASTER_ADDR="") == command
    assert of(command, workers=1, processes=1) == command


def test_single_worker_has_its_number_of_processes() -> None:
    assert of("accelerate launch t.py", workers=1) == "accelerate launch t.py"
    assert "--devices=4 --num_nodes=1" in of("fabric run t.py", workers=1)
    assert of("tune run r.py", workers=1) == "tune run --nproc_per_node=4 r.py"


def test_agent_starts_the_launcher_with_its_place(program: Path, tmp_path: Path) -> None:
    launcher = tmp_path / "fabric"
    launcher.write_text(f"#!{sys.executable}\nimport sys\nopen('arguments', 'w').write(' '.join(sys.argv[1:]))\n")
    launcher.chmod(0o755)
    process = AgentProcess(program, tmp_path, "--once", "--", str(launcher), "run", "t.py", **WARM_START_OFF, **ADDRESS)
    code, log = process.wait()
    options = f"--devices=2 --num_nodes=2 {FABRIC}"
    assert (code, f"options added to the command of fabric: {options}" in log) == (0, True), log
    assert (tmp_path / "arguments").read_text() == f"run {options} t.py"
