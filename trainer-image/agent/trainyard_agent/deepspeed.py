"""Start the ranks of a `deepspeed` command in place of its launcher.

The launcher needs a file of hosts, and ssh to each of them. In a pod without both it forms a group of its own. It also exits with 0 if it
is killed itself. The agent knows where all ranks are, and each of its own is its child. The options are those of deepspeed 0.19
(`launcher/runner.py`), and the ranks get what `launcher/launch.py` gives them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainyard_agent.program import PYTHON
from trainyard_agent.ranks import Place

NAME, MODULE = "deepspeed", "deepspeed.launcher.runner"
IGNORED = frozenset({"--no_ssh", "--no_ssh_check", "--force_multi", "--save_pid", "-q", "--quiet"})
"""Options without a value that concern the launcher alone."""
IGNORED_WITH_VALUE = frozenset(
    {"-H", "--hostfile", "--num_nodes", "--num_gpus", "--num_accelerators", "--master_port", "--master_addr"}
    | {"--node_rank", "--launcher", "--launcher_args", "--ssh_port", "--log_level"}
)
"""Options with a value, of which the operator knows the value, or which concern the launcher alone."""
MAX_SHEBANG_BYTES = 256


class Ranks(NamedTuple):
    """How to start the ranks of a `deepspeed` command."""

    words: Sequence[str]
    """The command of each rank."""
    local_rank_at: int | None
    """Where in it the argument `--local_rank=N` belongs; None: the program gets none."""
    unused: Sequence[str]
    """The options that were left out."""


def ranks(words: Sequence[str], environment: Mapping[str, str]) -> Ranks | None:
    """Return how to start the ranks of this command; None where it is none of deepspeed, or has options that only its launcher knows."""
    found = _launcher(words, environment)
    if found is None:
        return None
    interpreter, arguments = found
    flags, unused = set[str](), list[str]()
    while arguments and arguments[0].startswith("-"):
        option, _, value = arguments[0].partition("=")
        length = 1
        if option in {"--module", "--no_python", "--no_local_rank"} and not value:
            flags.add(option)
        elif option in IGNORED_WITH_VALUE:
            length = 1 if value else 2
        elif option not in IGNORED or value:
            return None
        if option not in flags:
            unused += arguments[:length]
        arguments = arguments[length:]
    if not arguments or {"--module", "--no_python"} <= flags:
        return None
    start = [] if "--no_python" in flags else [*interpreter, "-u", *(["-m"] if "--module" in flags else [])]
    local_rank_at = None if "--no_local_rank" in flags else len(start) + 1
    return Ranks([*start, *arguments], local_rank_at, unused)


def with_local_rank(words: Sequence[str], at: int | None, environment: Mapping[str, str]) -> Sequence[str]:
    """Return the command of one rank, with its local rank as an argument."""
    return words if at is None else [*words[:at], f"--local_rank={environment['LOCAL_RANK']}", *words[at:]]


def variables_beside_torchrun(place: Place) -> dict[str, str]:
    """Return what the launcher sets beside the variables of torchrun."""
    return {
        "CROSS_RANK": str(place.worker),
        "CROSS_SIZE": str(place.workers),
        "LOCAL_SIZE": str(place.processes),
    }


def _launcher(words: Sequence[str], environment: Mapping[str, str]) -> tuple[Sequence[str], Sequence[str]] | None:
    """Return the interpreter of deepspeed's launcher and the launcher's arguments; None for another command."""
    if PYTHON.fullmatch(words[0]):
        if words[1:3] == ["-m", MODULE]:
            return words[:1], words[3:]
        script = words[1:2]
        return (words[:1], words[2:]) if script and os.path.basename(script[0]) == NAME else None  # noqa: PTH119 - pathlib takes its time to import
    if os.path.basename(words[0]) != NAME:  # noqa: PTH119
        return None
    interpreter = interpreter_of(words[0], environment)
    return (interpreter, words[1:]) if interpreter else None


def interpreter_of(name: str, environment: Mapping[str, str]) -> list[str]:
    """Return the Python that runs a script, from its first line; nothing where that names none."""
    folders = [""] if "/" in name else environment.get("PATH", os.defpath).split(":")
    for folder in folders:
        try:
            with open(os.path.join(folder, name), "rb") as file:  # noqa: PTH118, PTH123
                first = file.readline(MAX_SHEBANG_BYTES).decode(errors="replace")
        except OSError:
            continue
        words = first.removeprefix("#!").split() if first.startswith("#!") else []
        if words[:1] and os.path.basename(words[0]) == "env":  # noqa: PTH119
            words = words[1:]
        return words[:1] if words[:1] and PYTHON.fullmatch(words[0]) else []
    return []
