"""torch.compile, with what it has compiled kept over restarts.

Inductor keeps its code in a folder, by a key of everything that it depends on: torch's release, the device, the graph. Files appear in it by
renaming, so all ranks of a node and several jobs may share it; what another release left is not taken. Such files are code: only who may
run code in the job may be allowed to write them.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn


def compiled(
    model: nn.Module, cache: Path | str | None = None, *, backend: str = "inductor", dynamic: bool | None = None
) -> nn.Module:
    """Have a model compiled when it is first used. To be called before anything else is compiled, and before DDP wraps the model.

    It is compiled in place: the names in its state dict stay as they are, and so a checkpoint fits with and without.

    Args:
        model: what is trained.
        cache: a folder that outlives the process, on a volume of the node or of the job. None: what the environment says
            (TORCHINDUCTOR_CACHE_DIR), which also goes before what is given here.
        backend: "inductor", or one that makes no code: "aot_eager" and "eager", to look for errors.
        dynamic: as for torch.compile: False compiles anew for each shape, None only for the second.

    Raises:
        ValueError: the folder cannot be written, the backend is unknown, or there is no compiler that it needs.
    """
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise ValueError(f"backend must be one of {', '.join(known)}, and is {backend!r}")
    if backend == "inductor":
        device = next((value.device.type for value in model.parameters()), "cpu")
        if missing := lacks(device, os.environ, shutil.which, triton=find_spec("triton") is not None):
            raise ValueError(f"{missing}, or train without torch.compile (backend='eager')")
        if cache is not None and "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_writable(Path(cache)))
    model.compile(backend=backend, dynamic=dynamic)
    return model


def lacks(device: str, environ: Mapping[str, str], which: Callable[[str], str | None], *, triton: bool) -> str | None:
    """What Inductor would look for in vain, and what to do; None: nothing. Pure.

    Args:
        device: the type of the model's device.
        environ: the environment: CXX and CC name a compiler.
        which: where a program is; None: nowhere.
        triton: whether it can be imported.
    """
    if device == "cpu":
        names = [environ.get("CXX", "g++")]
        kind = "C++"
    else:
        if not triton:
            return "torch.compile needs Triton for GPUs, which this image does not have: install triton"
        # Triton compiles the launcher of each kernel.
        names = [environ["CC"]] if "CC" in environ else ["gcc", "clang"]
        kind = "C"
    if any(which(name) for name in names):
        return None
    return f"torch.compile needs a {kind} compiler, and there is no {' and no '.join(names)} in this image: install one"


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"the cache of torch.compile cannot be made in {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"the cache of torch.compile cannot be written in {folder}: permission denied")
    return folder.resolve()
