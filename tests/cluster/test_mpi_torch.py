"""A program whose process group is torch's own of MPI, which `mpirun` starts in several workers without ssh."""

from tests.cluster.elastic_group import LONG
from tests.cluster.kube import Json, Kube, job, main_container, train_on_cpus
from tests.cluster.recipe_jobs import load

PROGRAM = """
import torch
import torch.distributed as group
group.init_process_group("mpi")
rank, size = group.get_rank(), group.get_world_size()
for _ in range(10):
    total = torch.tensor([rank + 1.0])
    group.all_reduce(total)
group.barrier()
print(f"rank {rank} of {size} has {int(total)}", flush=True)
group.destroy_process_group()
"""
pytestmark = LONG


def manifest() -> Json:
    made = job("mpi-torch", replicas=2, framework="mpi", processesPerReplica=2)
    container = main_container(made)
    container["image"] = "localhost/trainyard/frameworks:dev"
    container["command"] = ["mpirun", "python3", "-c", PROGRAM]
    return train_on_cpus(made)


def test_group_of_mpi_forms_across_workers(recipes: Kube) -> None:
    made = manifest()
    load(recipes.cluster, made)
    recipes.apply(made)
    status = recipes.wait_phase("mpi-torch", "Complete", 120)
    log = recipes.run("logs", "mpi-torch-worker-0-1", "--tail=-1")
    assert all(f"rank {rank} of 4 has 10" in log for rank in range(4)), log
    assert (status["attempt"], status["restarts"]["failures"]) == (1, 0)
