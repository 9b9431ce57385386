"""Find numbers and hosts in a command that contradict the job: those of launchers. Pure.

Only what is certain is reported: an option of one launcher in the command, with a plain number or a list of hosts. A value from a variable is not
known here, and neither is what follows the program's name. The options are those of torch 2.6, Open MPI 5, MPICH 5, deepspeed 0.19,
accelerate 1.15, lightning 2.6 and horovod 0.28.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import basename

from trainyard.api.spec import Framework
from trainyard.frameworks.launch_command import SHELLS, is_python
from trainyard.frameworks.worker_spec import Worker, command_line

MPI_LAUNCHERS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
TORCHRUN = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})
SUBCOMMANDS = frozenset({"launch", "run", "model"})
MAX_DIGITS = 6


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


RANKS_OF_MPI = _words("n np c")
HOSTS_OF_MPI = _words("hostfile machinefile default-hostfile host hosts H f")
KNOWN = RANKS_OF_MPI | HOSTS_OF_MPI
"""Options that take the next word, of launchers whose program may be none of Python."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A launcher in a command, with its options."""

    name: str
    options: Mapping[str, str]
    """By name without dashes, and with underscores in the place of those within. The value is empty where there is none."""
    in_shell: bool

    def given(self, names: frozenset[str]) -> tuple[str, str] | None:
        """Return the first of these options that the command has, and its value."""
        return next(((name, self.options[name]) for name in self.options if name in names), None)

    def number(self, names: frozenset[str]) -> tuple[str, int] | None:
        """Return the first of these options whose value is a number."""
        found = self.given(names)
        if found is None or not (found[1].isascii() and found[1].isdecimal() and len(found[1]) < MAX_DIGITS):
            return None
        return found[0], int(found[1])


def command_conflicts(worker: Worker) -> list[str]:
    """Return what to change in the command or the job; nothing where they are not known to contradict each other."""
    if worker.spec.framework is Framework.NONE:
        return []
    launch = _launch(command_line(worker.spec.template["spec"]["containers"][0]))
    if launch is None:
        return []
    check = CHECKS[launch.name]
    is_of_torch = check not in {_of_mpi, _of_horovodrun, _of_srun}
    return [] if is_of_torch and not worker.spec.framework.forms_torch_group else check(worker, launch)


def _of_mpi(worker: Worker, launch: Launch) -> list[str]:
    framework, slots = worker.spec.framework, worker.workers * worker.job.processes
    if framework is not Framework.MPI:
        if worker.workers == 1:
            return []
        return [
            f"{launch.name} starts ranks in its own worker alone, of which there are {worker.workers}: set framework to mpi"
        ]
    found = []
    if hosts := launch.given(HOSTS_OF_MPI):
        found.append(
            f"{launch.name} gets hosts of its own ({_dashed(hosts[0])} {hosts[1]}): leave the option out, since the agents give it the"
            f" {worker.workers} workers of the job"
        )
    ranks = launch.number(RANKS_OF_MPI)
    if ranks and ranks[1] > slots:
        found.append(
            f"{launch.name} is to start {ranks[1]} ranks ({_dashed(ranks[0])} {ranks[1]}), and the job has {_slots(worker)}: change"
            f" processesPerReplica or replicas, or leave {_dashed(ranks[0])} out"
        )
    elif ranks and ranks[1] < slots and not launch.in_shell:
        found.append(
            f"{launch.name} is to start {ranks[1]} of the ranks ({_dashed(ranks[0])} {ranks[1]}) for which the job has {_slots(worker)}:"
            f" leave {_dashed(ranks[0])} out, or lower processesPerReplica or replicas"
        )
    return found


def _of_torchrun(worker: Worker, launch: Launch) -> list[str]:
    found = []
    if worker.workers > 1 and "standalone" in launch.options:
        found.append(f"--standalone makes a group of its own of each of the {worker.workers} workers: leave it out")
    if nodes := launch.given(_words("nnodes")):
        low, _, high = nodes[1].partition(":")
        bounds = [low, high or low]
        plain = all(bound.isascii() and bound.isdecimal() and len(bound) < MAX_DIGITS for bound in bounds)
        if plain and not int(bounds[0]) <= worker.workers <= int(bounds[1]):
            found.append(_number_of_nodes(worker, "--nnodes", nodes[1], "PET_NNODES has the number"))
    if processes := launch.number(_words("nproc_per_node")):
        found += _processes(worker, "--nproc_per_node", processes[1])
    return found


def _of_deepspeed(worker: Worker, launch: Launch) -> list[str]:
    """Return the options that the agent does not use where it starts the ranks in place of the launcher."""
    found = []
    if hosts := launch.given(_words("hostfile H")):
        found.append(
            f"deepspeed gets hosts of its own ({_dashed(hosts[0])} {hosts[1]}): leave the option out, since the operator knows the workers"
        )
    nodes = launch.number(_words("num_nodes"))
    if nodes and nodes[1] != worker.workers:
        found.append(
            _number_of_nodes(worker, "--num_nodes", str(nodes[1]), "the agent starts the ranks of all workers")
        )
    if processes := launch.number(_words("num_gpus num_accelerators")):
        found += _processes(worker, f"--{processes[0]}", processes[1])
    return found


def _of_accelerate(worker: Worker, launch: Launch) -> list[str]:
    machines, processes = launch.number(_words("num_machines")), launch.number(_words("num_processes"))
    if machines and machines[1] != worker.workers:
        return [_number_of_nodes(worker, "--num_machines", str(machines[1]), "the agent adds it")]
    total = worker.workers * worker.job.processes
    # For one machine, the number is that of each worker.
    right = {total} if machines else {total, worker.job.processes}
    if processes and processes[1] not in right:
        return [
            (
                f"the command has --num_processes {processes[1]}, and the job has {_ranks(worker)}: leave the option out, or change"
                " processesPerReplica"
            )
        ]
    return []


def _of_fabric(worker: Worker, launch: Launch) -> list[str]:
    found, nodes = [], launch.number(_words("num_nodes"))
    if nodes and nodes[1] != worker.workers:
        found.append(_number_of_nodes(worker, "--num-nodes", str(nodes[1]), "the agent adds it"))
    if processes := launch.number(_words("devices")):
        found += _processes(worker, "--devices", processes[1])
    return found


def _of_horovodrun(worker: Worker, _: Launch) -> list[str]:
    if worker.workers == 1 and worker.spec.framework is not Framework.HOROVOD:
        return []
    return [
        (
            "horovodrun reaches other workers by ssh alone: make the program itself the command (python3 train.py), and set framework to"
            " horovod; the agents then start its ranks"
        )
    ]


def _of_srun(worker: Worker, _: Launch) -> list[str]:
    if worker.spec.framework is Framework.MPI:
        return ["srun looks for a Slurm cluster: make the command mpirun, which the agents give the workers of the job"]
    return [
        "srun looks for a Slurm cluster: make the program itself the command (python3 train.py); the agents start its ranks"
    ]


CHECKS: Mapping[str, Callable[[Worker, Launch], list[str]]] = {
    **dict.fromkeys(MPI_LAUNCHERS, _of_mpi),
    **dict.fromkeys(TORCHRUN, _of_torchrun),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), _of_deepspeed),
    **dict.fromkeys(("accelerate", "accelerate-launch", "accelerate.commands.launch"), _of_accelerate),
    **dict.fromkeys(("fabric", "lightning", "lightning.fabric.cli", "lightning_fabric.cli"), _of_fabric),
    **dict.fromkeys(("horovodrun", "horovod.runner.launch"), _of_horovodrun),
    "srun": _of_srun,
}
"""By the program or module of a launcher."""


def _number_of_nodes(worker: Worker, option: str, value: str, why: str) -> str:
    return (
        f"the command has {option} {value}, and the job has replicas {worker.workers}: leave {option} out, since {why}"
    )


def _processes(worker: Worker, option: str, value: int) -> list[str]:
    if value == worker.job.processes:
        return []
    return [
        (
            f"the command has {option} {value}, and a worker has processesPerReplica {worker.job.processes}: set both to the same number, or"
            f" leave {option} out"
        )
    ]


def _ranks(worker: Worker) -> str:
    total = worker.workers * worker.job.processes
    return f"{total} ranks (replicas x processesPerReplica: {worker.workers} x {worker.job.processes})"


def _slots(worker: Worker) -> str:
    return _ranks(worker).replace("ranks", "slots", 1)


def _dashed(name: str) -> str:
    return f"-{name}" if len(name) <= 2 else f"--{name.replace('_', '-')}"


def _launch(command: Sequence[str]) -> Launch | None:
    """Return the launcher of a command with its options; None where there is none, or more than one."""
    in_shell = bool(command) and basename(command[0]) in SHELLS
    words = [word for text in command for word in text.split()] if in_shell else command[: _program(command)]
    at = [index for index, word in enumerate(words) if _name(word) in CHECKS]
    if not at or len({_name(words[index]) for index in at}) != len(at) or ":" in words:
        return None
    return Launch(_name(words[at[0]]), _options(words[at[0] + 1 :]), in_shell)


def _program(words: Sequence[str]) -> int:
    """Return the place behind the Python script or module of a command: what follows are its own arguments. Else the end."""
    for at, (before, word, after) in enumerate(zip(["", *words], words, [*words[1:], ""], strict=False)):
        if word.endswith(".py"):
            return at + 1
        if word == "-m" and before and is_python([before]) and after not in CHECKS:
            return at + 2
    return len(words)


def _name(word: str) -> str:
    return word if "/" not in word else basename(word)


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the options before the program.

    Where a word may be the value of an option that is not known here, or the program, what follows it is left out. The words
    before a Python program are all options of the launcher.
    """
    end = next((at for at, word in enumerate(words) if is_python([word])), None)
    found, last = dict[str, str](), ""
    for word in words[:end]:
        if word.startswith("-") and word != "-":
            name, sign, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            found.setdefault(name, value)
            last = "" if sign else name
        elif last:
            if end is None and last not in KNOWN:
                break
            found[last] = found[last] or word
            last = ""
        elif end is None and word not in SUBCOMMANDS:
            break
    return found
