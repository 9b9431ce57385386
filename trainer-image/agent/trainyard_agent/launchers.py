"""Add to the command of a launcher the place of this worker in its group. Pure.

torchrun reads that place from the variables `PET_*`. `accelerate launch`, `fabric run` and `tune run` start torchrun with a place of
their own, which is that of a single machine. So each worker would form a group of its own, or the workers would not meet at all. Options that
the user has given stay. The options are those of accelerate 1.15 (`commands/launch.py`), lightning 2.6 (`fabric/cli.py`) and torchtune 0.6
(`_cli/run.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from trainyard_agent.program import PYTHON
from trainyard_agent.ranks import Place


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


WRAPPERS = _words(
    "env timeout nice nohup time setsid stdbuf ionice taskset numactl tini dumb-init gosu su-exec ddtrace-run"
    " conda mamba micromamba uv poetry pdm pipenv pixi rye hatch"
)
"""Programs that run the command in their arguments. A shell is none: its script is one argument, which is not parsed."""
ACCELERATE_FLAGS = _words(
    "cpu debug downcast_bf16 dynamo_use_dynamic dynamo_use_fullgraph dynamo_use_regional_compilation enable_cpu_affinity"
    " fp8_use_autocast_during_eval help module multi_gpu no_python no_tpu_cluster quiet same_network tpu tpu_cluster"
    " tpu_use_sudo use_deepspeed use_fsdp use_megatron_lm use_parallelism_config h m q"
)
"""Its options without a value."""
OTHER_GROUPS = frozenset({"tpu", "tpu_cluster", "mpirun_hostfile"})
"""Options of accelerate with which it forms its group in another way."""


class Given(NamedTuple):
    """An option of the user."""

    at: int
    """Where it is in the command."""
    length: int
    """How many words it has."""
    value: str


class Placed(NamedTuple):
    """A command in which the launcher knows the place of this worker."""

    launcher: str
    words: Sequence[str]
    added: Sequence[str]
    """The options that were added, or that replace one of the user."""


class _Launcher(NamedTuple):
    name: str
    starts: Sequence[Sequence[str]]
    """The words with which its options begin; those of a module without `python -m`."""
    place: Callable[[Sequence[str], int, Place, str, str], tuple[Sequence[str], Sequence[str]]]
    """Return the options to add at an index of the command, and the command in which one of the user may be missing."""


def placed(words: Sequence[str], environment: Mapping[str, str], where: Place) -> Placed | None:
    """Return the command with the place of this worker; None where there is nothing to add. `environment`: that of the attempt."""
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    found = _find(words)
    if found is None or not address or not port or where.workers * where.processes == 1:
        return None
    launcher, at = found
    added, kept = launcher.place(words, at, where, address, port)
    return Placed(launcher.name, [*kept[:at], *added, *kept[at:]], added) if added else None


def _accelerate(
    words: Sequence[str], at: int, where: Place, address: str, port: str
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the place for `accelerate launch`. Its number of processes is that of all machines together."""
    given = _options(words, at, ACCELERATE_FLAGS)
    machines, processes = given.get("num_machines"), given.get("num_processes")
    if where.workers == 1 or not OTHER_GROUPS.isdisjoint(given) or (machines and machines.value != str(where.workers)):
        return (), words
    total, kept = where.workers * where.processes, words
    if processes and not machines:
        # A command for one machine: its number is that of each worker.
        if not (processes.value.isascii() and processes.value.isdecimal()):
            return (), words
        total = total if int(processes.value) == total else int(processes.value) * where.workers
        kept = [*words[: processes.at], *words[processes.at + processes.length :]]
        del given["num_processes"]
    options = {
        "num_machines": str(where.workers),
        "num_processes": str(total),
        "machine_rank": str(where.worker),
        "main_process_ip": address,
        "main_process_port": port,
        # Its default looks for ssh.
        "deepspeed_multinode_launcher": "standard",
    }
    return [word for name, value in options.items() if name not in given for word in (f"--{name}", value)], kept


def _fabric(
    words: Sequence[str], at: int, where: Place, address: str, port: str
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the place for `fabric run`. By default it starts one process on one machine."""
    given = _options(words, at, frozenset({"help"}))
    nodes = given.get("num_nodes")
    if nodes and nodes.value != str(where.workers):
        return (), words
    options = {
        "devices": str(where.processes),
        "num_nodes": str(where.workers),
        "node_rank": str(where.worker),
        "main_address": address,
        "main_port": port,
    }
    return [f"--{name}={value}" for name, value in options.items() if name not in given], words


def _tune(words: Sequence[str], at: int, where: Place, _: str, __: str) -> tuple[Sequence[str], Sequence[str]]:
    """Return an option of torchrun, with any of which `tune run` starts torchrun: that finds the rest in `PET_*`."""
    if words[at : at + 1] and not words[at].startswith("-"):
        return [f"--nproc_per_node={where.processes}"], words
    return (), words


LAUNCHERS = (
    _Launcher(
        "accelerate",
        (
            ["accelerate", "launch"],
            ["accelerate-launch"],
            ["accelerate.commands.launch"],
            ["accelerate.commands.accelerate_cli", "launch"],
        ),
        _accelerate,
    ),
    _Launcher(
        "fabric",
        (
            ["lightning", "run", "model"],
            ["fabric", "run"],
            ["lightning.fabric.cli", "run"],
            ["lightning.fabric.cli"],
            ["lightning_fabric.cli"],
        ),
        _fabric,
    ),
    _Launcher("tune", (["tune", "run"], ["torchtune._cli.tune", "run"]), _tune),
)


def _find(words: Sequence[str]) -> tuple[_Launcher, int] | None:
    """Return the launcher that a command starts, and where its options begin."""
    if not words:
        return None
    is_wrapped = os.path.basename(words[0]) in WRAPPERS  # noqa: PTH119 - pathlib takes its time to import
    for at in range(len(words) if is_wrapped else 1):
        begin = at
        if PYTHON.fullmatch(words[at]):
            begin += 2 if words[at + 1 : at + 2] == ["-m"] else 1
        is_module = begin == at + 2
        for launcher in LAUNCHERS:
            for start in launcher.starts:
                found = list(words[begin : begin + len(start)])
                if found and not is_module:
                    found[0] = os.path.basename(found[0])  # noqa: PTH119 - as above
                if found == list(start) and is_module == ("." in start[0]):
                    return launcher, begin + len(start)
        if begin > at:
            # Another program: what follows are its arguments.
            return None
    return None


def _options(words: Sequence[str], at: int, flags: frozenset[str]) -> dict[str, Given]:
    """Return the options before the program, by name with underscores. `flags`: those without a value."""
    found = dict[str, Given]()
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        option, sign, value = words[at].partition("=")
        name = option.lstrip("-").replace("-", "_")
        length = 1 if sign or name in flags else 2
        found[name] = Given(at, length, value if length == 1 else "".join(words[at + 1 : at + 2]))
        at += length
    return found
