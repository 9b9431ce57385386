"""Commands whose numbers or hosts contradict the job."""

from typing import Any

import pytest

from tests.support.worker_pods import container, worker
from trainyard.frameworks.command_conflicts import command_conflicts


def found(command: str | list[str], **spec: Any) -> list[str]:
    """The conflicts of a job with two workers of two processes."""
    words = command.split() if isinstance(command, str) else command
    return command_conflicts(worker(container(command=words), **{"replicas": 2, "processesPerReplica": 2, **spec}))


SLOTS = "and the job has 4 slots (replicas x processesPerReplica: 2 x 2)"


@pytest.mark.parametrize(
    ("framework", "command", "note"),
    [
        ("mpi", "mpirun -np 8 python3 t.py", f"mpirun is to start 8 ranks (-np 8), {SLOTS}: change processesPerReplica"),
        ("mpi", "mpiexec -n 8 ./app", f"mpiexec is to start 8 ranks (-n 8), {SLOTS}"),
        ("mpi", "mpirun --bind-to none -np 8 python3 t.py", "8 ranks (-np 8)"),
        ("mpi", "/usr/bin/mpirun -np 3 python3 t.py", "mpirun is to start 3 of the ranks (-np 3) for which the job has 4 slots"),
        ("mpi", "mpirun --hostfile /job/hosts python3 t.py", "mpirun gets hosts of its own (--hostfile /job/hosts): leave"),
        ("mpi", "mpirun -H a:2,b:2 ./app -n 5", "mpirun gets hosts of its own (-H a:2,b:2)"),
        ("mpi", "sh -c 'mpirun -np 16 python3 t.py'", "is to start 16 ranks"),
        ("torch", "mpirun -np 2 python3 t.py", "in its own worker alone, of which there are 2: set framework to mpi"),
        ("torch", "torchrun --nnodes 4 t.py", "--nnodes 4, and the job has replicas 2: leave --nnodes out, since PET_NNODES"),
        ("torch", "torchrun --nnodes=3:4 t.py", "--nnodes 3:4, and the job has replicas 2"),
        ("torch", "torchrun --nproc-per-node=8 t.py", "--nproc_per_node 8, and a worker has processesPerReplica 2: set both"),
        ("torch", "python3 -m torch.distributed.run --nnodes 1 t.py", "--nnodes 1, and the job has replicas 2"),
        ("torch", "torchrun --standalone t.py", "--standalone makes a group of its own of each of the 2 workers"),
        ("deepspeed", "deepspeed --num_gpus 8 t.py", "--num_gpus 8, and a worker has processesPerReplica 2"),
        ("deepspeed", "deepspeed --num_nodes 4 t.py", "--num_nodes 4, and the job has replicas 2: leave --num_nodes out"),
        ("deepspeed", "deepspeed -H /job/hosts t.py", "deepspeed gets hosts of its own (-H /job/hosts): leave the option out"),
        ("torch", "accelerate launch --num_processes 8 t.py", "--num_processes 8, and the job has 4 ranks"),
        ("torch", "accelerate launch --num_machines 3 t.py", "--num_machines 3, and the job has replicas 2"),
        ("torch", "fabric run --num-nodes 4 t.py", "--num-nodes 4, and the job has replicas 2"),
        ("torch", "lightning run model --devices=8 t.py", "--devices 8, and a worker has processesPerReplica 2"),
        ("horovod", "horovodrun -np 4 -H a:2,b:2 python t.py", "set framework to horovod; the agents then start its ranks"),
        ("torch", "horovodrun -np 4 python t.py", "make the program itself the command (python3 train.py)"),
        ("jax", "srun --ntasks=4 python t.py", "srun looks for a Slurm cluster: make the program itself the command"),
        ("torch", "sh -c 'cd /code && srun -l python t.py'", "srun looks for a Slurm cluster"),
        ("mpi", "srun ./app", "srun looks for a Slurm cluster: make the command mpirun"),
    ],
)  # fmt: skip
def test_contradiction_names_option_field_and_fix(framework: str, command: str, note: str) -> None:
    words = ["sh", "-c", command[7:-1]] if command.startswith("sh -c") else command.split()
    (note_found,) = found(words, framework=framework)
    assert note in note_found


@pytest.mark.parametrize(
    ("framework", "command"),
    [
        ("mpi", "mpirun python3 t.py"),
        ("mpi", "mpirun -np 4 python3 t.py"),
        ("mpi", "mpirun -np $N python3 t.py"),
        ("mpi", "mpirun python3 t.py -n 8 --hostfile x"),
        ("mpi", "mpirun --oversubscribe app -n 8"),
        ("mpi", "mpirun app -n 8"),
        ("mpi", "mpirun -np 1 ./server : -np 9 ./client"),
        ("mpi", "./script.sh -np 8"),
        ("torch", "torchrun t.py --nnodes 4"),
        ("torch", "torchrun --nnodes=2 --nproc_per_node=2 t.py"),
        ("torch", "torchrun --nnodes=1:4 --nproc_per_node=gpu t.py"),
        ("torch", "torchrun --nnodes=$WORLD_SIZE t.py"),
        ("torch", "accelerate launch --num_processes 2 t.py"),
        ("torch", "accelerate launch --num_processes 4 t.py"),
        ("torch", "accelerate launch --num_machines 2 --num_processes 4 t.py"),
        ("deepspeed", "deepspeed --num_gpus 2 --num_nodes 2 t.py"),
        ("torch", "fabric run --devices 2 --num-nodes 2 t.py"),
        ("torch", "python3 train.py --nnodes 4"),
        ("torch", "python3 train.py --scheduler srun"),
        ("torch", "python3 train.py --with lightning --devices=8"),
        ("torch", "python3 -m package.train --with accelerate --num_processes=8"),
        ("none", "mpirun -np 9 python3 t.py"),
        ("none", "srun ./app"),
        ("none", "torchrun --standalone --nproc_per_node 9 t.py"),
    ],
)
def test_what_fits_or_is_unknown_is_no_warning(framework: str, command: str) -> None:
    assert found(command, framework=framework) == []


def test_script_may_use_a_part_of_the_slots() -> None:
    assert found(["sh", "-c", "mpirun -np 1 prepare && python3 t.py"], framework="mpi") == []
    twice = "mpirun -np 9 python3 a.py; mpirun -np 9 python3 b.py"
    assert found(["bash", "-c", twice], framework="mpi") == [], "of several launchers nothing is certain"


def test_accelerate_counts_all_machines_together() -> None:
    command = "accelerate launch --num_machines 2 --num_processes 2 t.py"
    assert "--num_processes 2, and the job has 4 ranks" in found(command)[0]


def test_one_worker_may_start_its_own_group() -> None:
    for command in (
        "mpirun -np 2 python3 t.py",
        "torchrun --standalone --nproc_per_node=2 t.py",
        "horovodrun -np 2 python t.py",
    ):
        assert found(command, framework="torch", replicas=1, index=0, attempt=1) == []


def test_image_without_command_is_no_warning() -> None:
    assert command_conflicts(worker(container(args=["--lr", "1"]))) == []
