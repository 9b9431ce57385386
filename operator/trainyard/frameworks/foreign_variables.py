"""Find variables in a template by which a library would believe in another framework's group than the job's. Pure."""

from collections.abc import Mapping
from types import MappingProxyType

from trainyard.api.spec import Framework
from trainyard.frameworks.environment import FRAMEWORK_ENVIRONMENTS
from trainyard.frameworks.mpi import SCHEDULERS
from trainyard.frameworks.worker_spec import Worker

OWNERS: Mapping[str, Framework] = MappingProxyType(
    {
        "TF_CONFIG": Framework.TENSORFLOW,
        "JAX_COORDINATOR_ADDRESS": Framework.JAX,
        "LIGHTGBM_MACHINES": Framework.LIGHTGBM,
        "DMLC_TRACKER_URI": Framework.XGBOOST,
        "DMLC_PS_ROOT_URI": Framework.DMLC,
        "PADDLE_TRAINER_ENDPOINTS": Framework.PADDLE,
        "HOROVOD_RANK": Framework.HOROVOD,
        "HOROVOD_SIZE": Framework.HOROVOD,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": Framework.HOROVOD,
        **dict.fromkeys(
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "PMIX_RANK"), Framework.MPI
        ),
    }
)
"""The framework whose ranks find each other by a variable."""
OF_RANKS = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK"})
"""Of a process that mpirun starts, its own numbers count. Some libraries look for these first."""


def foreign_variables(worker: Worker) -> list[str]:
    """Return what is wrong with variables of the template or of a role, and what to do; nothing where all fit the framework."""
    framework = worker.spec.framework
    if framework is Framework.NONE:
        return []
    names = {v["name"] for c in worker.spec.template["spec"]["containers"] for v in c.get("env") or ()}
    # Of these, another warning says that they are kept.
    names -= FRAMEWORK_ENVIRONMENTS[framework].reserved
    return [note for source, own in worker.sources(names).items() for note in _notes(source, {*own}, framework)]


def _notes(source: str, names: set[str], framework: Framework) -> list[str]:
    """Return what is wrong with variables that the template or a role sets."""
    by_owner = {owner: sorted(name for name in names if OWNERS.get(name) is owner) for owner in OWNERS.values()}
    found = [
        f"{source} sets {', '.join(own)}, by which the framework {owner} finds its group, and spec.framework is {framework}:"
        f" set framework to {owner}, or remove the variable from env"
        for owner, own in by_owner.items()
        if own and owner is not framework
    ]
    if schedulers := sorted(names & SCHEDULERS):
        found.append(
            f"{source} sets {', '.join(schedulers)}: libraries and launchers would take the job for one of a batch scheduler, and"
            " look for its hosts; remove the variable from env"
        )
    ranks = OF_RANKS.union(by_owner.get(Framework.MPI, ()))
    if framework is Framework.MPI and (own := sorted(names & ranks)):
        found.append(
            f"{source} sets {', '.join(own)} to one value for all ranks, which mpirun numbers itself: remove the variable from env"
        )
    return found
