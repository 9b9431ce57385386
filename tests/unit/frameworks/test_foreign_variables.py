"""Variables of another framework or of a batch scheduler in a template."""

from dataclasses import replace

import pytest

from tests.support.worker_pods import container, worker
from trainyard.api.roles import member_index
from trainyard.api.spec import Framework
from trainyard.frameworks.environment import user_set_identity
from trainyard.frameworks.foreign_variables import foreign_variables


def found(framework: str, *names: str) -> list[str]:
    return foreign_variables(
        worker(container(env=[{"name": name, "value": "1"} for name in names]), framework=framework)
    )


@pytest.mark.parametrize(
    ("framework", "name", "note"),
    [
        ("torch", "TF_CONFIG", "the framework tensorflow finds its group, and spec.framework is torch: set framework to tensorflow"),
        ("horovod", "OMPI_COMM_WORLD_RANK", "set framework to mpi, or remove the variable from env"),
        ("mpi", "HOROVOD_RANK", "set framework to horovod"),
        ("torch", "JAX_COORDINATOR_ADDRESS", "set framework to jax"),
        ("xgboost", "LIGHTGBM_MACHINES", "set framework to lightgbm"),
        ("xgboost", "DMLC_PS_ROOT_URI", "set framework to dmlc"),
        ("torch", "PADDLE_TRAINER_ENDPOINTS", "set framework to paddle"),
        ("torch", "SLURM_JOB_ID", "the template sets SLURM_JOB_ID: libraries and launchers would take the job for one of a batch"),
        ("tensorflow", "SLURM_NTASKS", "remove the variable from env"),
        ("mpi", "WORLD_SIZE", "to one value for all ranks, which mpirun numbers itself"),
        ("mpi", "OMPI_COMM_WORLD_RANK", "to one value for all ranks, which mpirun numbers itself"),
    ],
)  # fmt: skip
def test_variable_of_another_framework_is_reported(framework: str, name: str, note: str) -> None:
    (note_found,) = found(framework, name)
    assert note_found.startswith(f"the template sets {name}")
    assert note in note_found


@pytest.mark.parametrize(
    ("framework", "name"),
    [("tensorflow", "TF_CONFIG"), ("mpi", "SLURM_JOB_ID"), ("jax", "SLURM_PROCID"), ("mpi", "HYDRA_HOST_FILE")],
)
def test_own_variable_is_reported_once(framework: str, name: str) -> None:
    """By the warning that the operator keeps it."""
    made = worker(container(env=[{"name": name, "value": "1"}]), framework=framework)
    assert user_set_identity(made) == [name]
    assert foreign_variables(made) == []


def test_variables_are_reported_together() -> None:
    (note_found,) = found("torch", "PMI_SIZE", "PMI_RANK", "OMP_NUM_THREADS")
    assert note_found.startswith("the template sets PMI_RANK, PMI_SIZE, by which the framework mpi")


def test_variable_of_a_role_names_the_role() -> None:
    env = [{"name": "TF_CONFIG", "value": "{}"}]
    roles = [{"name": "head", "env": [{"name": "PMI_RANK", "value": "0"}]}]
    made = worker(container(env=env), framework="ray", roles=roles, index=member_index("head", 0))
    notes = foreign_variables(replace(made, job=made.job.of_member(made.index)))
    assert [note.partition(",")[0] for note in notes] == ["the role head sets PMI_RANK", "the template sets TF_CONFIG"]


def test_framework_none_may_set_all() -> None:
    assert found("none", "TF_CONFIG", "SLURM_JOB_ID", "RANK") == []


@pytest.mark.parametrize("framework", [each for each in Framework if each is not Framework.RAY])
def test_usual_variables_are_no_warning(framework: Framework) -> None:
    assert found(framework, "OMP_NUM_THREADS", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "HOROVOD_FUSION_THRESHOLD") == []
