"""Variables that help each rank, where the user has not set them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainyard_agent.nccl_network import SUBSYSTEMS_VARIABLE, VARIABLES
from trainyard_agent.program import PYTHON

NCCL_FILE_VARIABLE = "NCCL_DEBUG_FILE"
STANDARD_ERROR = "/dev/stderr"
REDIRECTIONS = (">", "|&")
LAZY_GLOO_VARIABLE = "TORCH_GLOO_LAZY_INIT"
MANY_RANKS = 256
"""From so many ranks on, gloo connects a rank with another one at their first exchange, with torch 2.8 and newer.

Otherwise, each group of all ranks costs a rank one connection to each other one. In small groups these cost little. A lazy connection to
a rank that has just exited may wait without a limit (pytorch/gloo#520), until the agent notices the hang.
"""


def rank_defaults(
    words: Sequence[str], environment: Mapping[str, str], world_size: int, *, starts_ranks: bool
) -> dict[str, str]:
    """Return the variables for ranks that run the command `words`. `starts_ranks`: the command is a launcher of ranks."""
    made = {}
    # With INFO or TRACE, NCCL prints more than the agent keeps.
    is_quiet = environment.get("NCCL_DEBUG", "").upper() == "WARN"
    if is_quiet and NCCL_FILE_VARIABLE not in environment and not starts_ranks and keeps_standard_error(words):
        # NCCL prints to the standard output otherwise, of which the agent reads nothing.
        made[NCCL_FILE_VARIABLE] = STANDARD_ERROR
    if world_size >= MANY_RANKS and LAZY_GLOO_VARIABLE not in environment:
        made[LAZY_GLOO_VARIABLE] = "1"
    return made


def network_variables(environment: Mapping[str, str], defaults: Mapping[str, str], workers: int) -> dict[str, str]:
    """Return the variables with which rank 0 reports the network that NCCL takes between its workers.

    `defaults`: the result of `rank_defaults`. Nothing where there is one worker, or where the user has chosen what NCCL prints.
    """
    is_read = NCCL_FILE_VARIABLE in defaults and SUBSYSTEMS_VARIABLE not in environment
    return dict(VARIABLES) if is_read and workers > 1 else {}


def keeps_standard_error(words: Sequence[str]) -> bool:
    """Return whether a command certainly leaves the standard error of its Python program as it is.

    NCCL opens and truncates its file. A log file to which a shell or a launcher has redirected the program would lose its begin.
    """
    names = [name for word in words for name in word.split()]
    redirects = any(mark in word for word in words for mark in REDIRECTIONS)
    return not redirects and any(PYTHON.fullmatch(name) for name in names)
