"""Compile models by torch.compile, with a cache that survives restarts.

Inductor stores its code in a folder, by a key of everything that it depends on: torch's release, the device, the graph. It renames complete files
into place, so all ranks of a node and several jobs may share the folder. Entries of another torch release are ignored. The files are code: only
users that may run code in the job may have write access.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch._functorch.config  # private, and the only place of the memory budget

from trainyard_torch.parallel.activation_checkpointing import recomputed_norm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

BUDGET_BACKENDS = ("inductor", "aot_eager_decomp_partition")
"""The backends that cut forward from backward by what must be kept."""


def compile_model(
    model: nn.Module,
    cache_dir: Path | str | None = None,
    *,
    backend: str = "inductor",
    dynamic: bool | None = None,
    activation_memory_budget: float | None = None,
) -> nn.Module:
    """Compile a model on first use. Call it before anything else is compiled, and before DDP wraps the model.

    The model is compiled in place. The names in its state dict do not change, so checkpoints fit with and without compilation.

    Args:
        model: the model to train.
        cache_dir: a folder that survives the process, on a volume of the node or of the job. None: the environment decides. The variable
            TORCHINDUCTOR_CACHE_DIR has precedence over this argument.
        backend: "inductor", or "aot_eager" or "eager", which generate no code, for debugging.
        dynamic: as for torch.compile. False recompiles for each shape.
        activation_memory_budget: the share of activations that a compiled graph may keep for the backward pass, from 0 (its inputs only) to 1
            (what is fastest). It holds for all that this process compiles from now on. None: torch decides, which is 1.

    Raises:
        ValueError: the model's forward is torch's own, the folder is not writable, or the backend is unknown. Or the image lacks a compiler
                or one of its dependencies. Or the budget is out of range, or the backend does not know it.
            Or `checkpoint_activations` recomputes a block with running statistics, such as those of a batch norm.
    """
    if type(model).forward.__module__.startswith("torch."):
        # Dynamo skips the frames of torch's own modules: nothing would be compiled, without a message (pytorch #150915).
        raise ValueError(
            f"forward of {type(model).__name__} is torch's own, which torch does not compile in place: make it part of a module of "
            "yours, or compile what is inside, before it is wrapped"
        )
    if (block := recomputed_norm(model)) is not None:
        raise ValueError(
            f"checkpoint_activations recomputes {block}, which has running statistics: compiled code would update them twice in a step; "
            "leave it out there, or do not compile the model"
        )
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise ValueError(f"backend must be one of {', '.join(known)}, got {backend!r}")
    if activation_memory_budget is not None:
        _check_budget(activation_memory_budget, backend)
    if backend == "inductor":
        device = next((value.device.type for value in model.parameters()), "cpu")
        if missing := missing_requirements(device, os.environ, this_image()):
            raise ValueError(
                f"torch.compile needs {', '.join(missing)}, which this image does not have: build one that has, or train "
                "without torch.compile"
            )
        if cache_dir is not None and "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_writable(Path(cache_dir)))
    if activation_memory_budget is not None:
        torch._functorch.config.activation_memory_budget = activation_memory_budget  # noqa: SLF001 - as above
    model.compile(backend=backend, dynamic=dynamic)
    return model


def _check_budget(budget: float, backend: str) -> None:
    if not 0 <= budget <= 1:
        raise ValueError(f"activation_memory_budget must be from 0 to 1, not {budget}")
    if backend not in BUDGET_BACKENDS:
        raise ValueError(
            f"activation_memory_budget needs a backend that decides what to recompute ({' or '.join(BUDGET_BACKENDS)}), and {backend} "
            "keeps all: leave it out, or use checkpoint_activations"
        )


@dataclass(frozen=True, slots=True)
class Image:
    """Lookups of what compilers need in this image. Each takes a name and returns whether it is available.

    Attributes:
        program: looks for a program on the path.
        module: looks for a Python module.
        header: looks for a header of C or C++.
    """

    program: Callable[[str], bool]
    module: Callable[[str], bool]
    header: Callable[[str], bool]


def missing_requirements(device: str, environ: Mapping[str, str], image: Image) -> list[str]:
    """Return the dependencies of Inductor that are missing. Pure.

    Args:
        device: the type of the model's device.
        environ: the environment: CXX and CC name a compiler.
        image: the lookups in the image.
    """
    found = {"Python's headers (python3-dev)": image.header("Python.h")}
    if device == "cpu":
        compiler = environ.get("CXX", "g++")
        found[f"a C++ compiler ({compiler})"] = image.program(compiler)
        found["setuptools"] = image.module("setuptools.command")
        found["torch's headers (libtorch-dev)"] = image.header("ATen/ATen.h")
    else:
        # gpu-only: what Triton needs
        # Triton compiles the launcher of each kernel.
        compilers = [environ["CC"]] if "CC" in environ else ["gcc", "clang"]
        found[f"a C compiler ({' or '.join(compilers)})"] = any(map(image.program, compilers))
        found["triton"] = image.module("triton")
    return [name for name, there in found.items() if not there]


def this_image() -> Image:
    """Return the lookups of this process."""
    headers = [Path(sysconfig.get_path("include")), Path(torch.__file__).with_name("include"), Path("/usr/include")]
    return Image(
        program=lambda name: shutil.which(name) is not None,
        module=_importable,
        header=lambda name: any((folder / name).exists() for folder in headers),
    )


def _importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # The package that it belongs to is missing.
        return False


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the cache of torch.compile cannot be made in {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"the cache of torch.compile cannot be written in {folder}: permission denied")
    return folder.resolve()
