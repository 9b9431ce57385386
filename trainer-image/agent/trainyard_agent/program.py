"""Parse a command line of Python. Pure. What is not understood for certain is no program: such a command is started without preparation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from trainyard_agent.nccl_network import VARIABLES as NCCL_VARIABLES
from trainyard_agent.ranks import rank_variables
from trainyard_agent.recorder import FILE_VARIABLES, PIPE_VARIABLE

PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
HARMLESS_OPTIONS = frozenset("uBOsEbd")
"""Options without a value that do not change how a program is found."""
PER_RANK_PREFIXES = ("TRAINYARD_", "MASTER_", "PET_", "TORCHELASTIC_", "GROUP_", "ROLE_")
JAX_VARIABLES = frozenset(
    {"JAX_COORDINATOR_ADDRESS", "COORDINATOR_ADDRESS", "COORDINATOR_PORT", "SLURM_JOB_ID", "SLURM_STEP_NODELIST"}
    | {"SLURM_PROCID", "SLURM_NTASKS", "JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "PROCESS_ID", "NUM_PROCESSES"}
    | {"TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_SLICE_ID"}
)
"""Those that the operator sets for JAX. JAX reads them when a program initializes the group, and not before."""
HOROVOD_VARIABLES = frozenset(
    {
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
    }
    | {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"}
)
"""Those that the operator sets for Horovod, which reads them when a program calls `hvd.init()`."""
PADDLE_VARIABLES = frozenset(
    {"PADDLE_MASTER", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_CURRENT_ENDPOINT", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"}
    | {"PADDLE_JOB_ID", "PADDLE_NNODES", "PADDLE_RANK", "PADDLE_RANK_IN_NODE", "FLAGS_selected_gpus"}
)
"""Those that the operator sets for Paddle, which reads them when a program initializes the group."""
GROUP_VARIABLES = frozenset(
    {"TF_CONFIG", "DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "LIGHTGBM_MACHINES", "WORKER_ADDRS", "WORKER_PORT"}
)
"""Those with the addresses of a group, for TensorFlow, XGBoost and LightGBM. Ports change with the attempt."""
PER_RANK_VARIABLES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        PIPE_VARIABLE,
        *FILE_VARIABLES,
        *NCCL_VARIABLES,
        *JAX_VARIABLES,
        *HOROVOD_VARIABLES,
        *PADDLE_VARIABLES,
        *GROUP_VARIABLES,
    }
)
"""Variables that differ between ranks or attempts. torch reads the flight recorder's when a process group is made, and so does NCCL its own."""


class Program(NamedTuple):
    """A Python program."""

    interpreter: Sequence[str]
    """With its options."""
    module: bool
    """Whether it is named by a module, not by a file."""
    name: str
    arguments: Sequence[str]


def parse(words: Sequence[str]) -> Program | None:
    """Return the program that a command runs, or None."""
    if not words or not PYTHON.fullmatch(words[0]):
        return None
    at = 1
    while at < len(words):
        word = words[at]
        if word == "-m":
            return Program(words[:at], True, words[at + 1], words[at + 2 :]) if at + 1 < len(words) else None  # noqa: FBT003 - a field
        if not word.startswith("-"):
            return Program(words[:at], False, word, words[at + 1 :])  # noqa: FBT003 - a field of the tuple
        length = _option_length(words[at:])
        if length == 0:
            return None
        at += length
    return None


def _option_length(words: Sequence[str]) -> int:
    """Return how many words the first option of the interpreter has; 0 where it may change how a program is found."""
    word = words[0]
    if word[:2] in {"-W", "-X"}:
        value = words[1] if len(word) == 2 and len(words) > 1 else word[2:]
        if word[:2] == "-X" and value.partition("=")[0] not in {"dev", "utf8", "faulthandler"}:
            return 0
        return 2 if len(word) == 2 else 1
    return 1 if len(word) > 1 and HARMLESS_OPTIONS.issuperset(word[1:]) else 0


def stable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that all ranks and attempts share, which a library may read when it is imported."""
    differ = PER_RANK_VARIABLES | rank_variables(environment).keys()
    return {
        name: value
        for name, value in environment.items()
        if name not in differ and not name.startswith(PER_RANK_PREFIXES)
    }


def differing(read: Iterable[str], base: Mapping[str, str], environments: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the variables that were read, and differ from `base` in any of these environments."""
    found = [*environments]
    return sorted(name for name in read if any(each.get(name) != base.get(name) for each in found))
