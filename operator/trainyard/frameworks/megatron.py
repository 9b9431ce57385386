"""Megatron: what its programs need beside the environment of torch, and whether their parallel sizes fit the group. Pure.

The sizes are those of `spec.parallelism`, or options of the command, as `megatron/training/arguments.py` has them. A value that a script
takes from a variable is not known here.
"""

from collections.abc import Mapping
from typing import Any

from trainyard.frameworks import torch
from trainyard.frameworks.worker_spec import Json, Worker, command_line

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
SIZES: Mapping[str, str] = {
    "--tensor-model-parallel-size": "tensor",
    "--pipeline-model-parallel-size": "pipeline",
    "--context-parallel-size": "context",
}
"""The options, and the fields of `spec.parallelism` that mean the same."""
FULLY_SHARDED = frozenset({"--use-megatron-fsdp", "--use-custom-fsdp", "--use-torch-fsdp2"})
"""With these, Megatron refuses to start if there is one connection: parameters are gathered beside the computation."""


def tuning_variables(worker: Worker, container: Mapping[str, Any]) -> list[Json]:
    """Return those of torch, and one connection to each GPU where ranks split tensors or sequences.

    Kernels then start in the order in which the program starts them, and communication begins before the computation that hides it.
    """
    variables = torch.tuning_variables(worker, container)
    sizes = _sizes(worker)
    if max(sizes["tensor"], sizes["context"]) > 1 and FULLY_SHARDED.isdisjoint(_words(worker)):
        variables.append({"name": CONNECTIONS, "value": "1"})
    return variables


def unfit_sizes(worker: Worker) -> str:
    """Return what of the command's parallel sizes does not fit the job; empty where nothing is known to be wrong."""
    given, sizes, parallelism = _given(worker), _sizes(worker), worker.spec.parallelism
    for option, field in SIZES.items():
        if parallelism is not None and field in given and given[field] != getattr(parallelism, field):
            return (
                f"the command has {option} {given[field]}, and spec.parallelism.{field} is {getattr(parallelism, field)}:"
                " set both to the same number"
            )
    product, ranks = sizes["tensor"] * sizes["pipeline"] * sizes["context"], worker.workers * worker.job.processes
    if ranks % product:
        named = " x ".join(f"{option} {sizes[field]}" for option, field in SIZES.items() if sizes[field] > 1)
        return (
            f"the group has {ranks} ranks (replicas x processesPerReplica: {worker.workers} x {worker.job.processes}), which is no"
            f" multiple of {product} ({named}); change one of these numbers"
        )
    if worker.job.processes % sizes["tensor"] and worker.job.processes > 1:
        return (
            f"the {sizes['tensor']} ranks that split a tensor are not all in one worker of {worker.job.processes} processes;"
            " they exchange data in each layer, so choose a size that divides processesPerReplica"
        )
    return ""


def _sizes(worker: Worker) -> dict[str, int]:
    """Return the parallel sizes. Those of the command count."""
    parallelism = worker.spec.parallelism
    fields = dict.fromkeys(SIZES.values(), 1) if parallelism is None else parallelism.model_dump()
    return {**fields, **_given(worker)}


def _given(worker: Worker) -> dict[str, int]:
    """Return the sizes that the command has as numbers, by field."""
    words, found = _words(worker), dict[str, int]()
    for at, word in enumerate(words):
        option, sign, value = word.partition("=")
        text = value if sign else "".join(words[at + 1 : at + 2])
        if option in SIZES and text.isascii() and text.isdecimal() and len(text) < 6 and int(text) > 0:
            found[SIZES[option]] = int(text)
    return found


def _words(worker: Worker) -> list[str]:
    """Return the words of the main container's command, those of a shell's script too."""
    main = worker.spec.template["spec"]["containers"][0]
    return [word for text in command_line(main) for word in text.split()]
