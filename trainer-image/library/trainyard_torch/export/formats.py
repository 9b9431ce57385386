"""Write the files of an export to a local folder, each by the library of its format."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from trainyard_torch.checkpoint.loader import reason
from trainyard_torch.export.record import ExportError, Input

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from torch import nn

    from trainyard_torch.export.weights import Weights

Format = Literal["torch", "safetensors", "torch.export", "onnx"]
FILES: dict[Format, str] = {
    "torch": "model.pt",
    "safetensors": "model.safetensors",
    "torch.export": "model.pt2",
    "onnx": "model.onnx",
}
TRACED = frozenset({"torch.export", "onnx"})
PACKAGES: dict[Format, tuple[str, ...]] = {"safetensors": ("safetensors",), "onnx": ("onnx", "onnxscript")}
LARGE = 3 * 2**29
"""Size of weights in bytes from which ONNX stores them in a separate file: one ONNX file holds at most 2 GB."""
FULL = 2**20

logger = logging.getLogger(__name__)


def checked(formats: Collection[str]) -> tuple[Format, ...]:
    """Return these formats in the order in which they are written.

    Raises:
        ValueError: a format is unknown, or the list is empty.
        ExportError: a package that a format needs is missing.
    """
    if isinstance(formats, str):
        formats = (formats,)
    known = get_args(Format)
    if unknown := sorted(set(formats) - set(known)):
        raise ValueError(f"formats must be of {', '.join(known)}, and has {', '.join(unknown)}")
    if not formats:
        raise ValueError(f"formats is empty: name one or more of {', '.join(known)}")
    chosen = tuple(name for name in FILES if name in formats)
    for name in chosen:
        if missing := [package for package in PACKAGES.get(name, ()) if find_spec(package) is None]:
            raise ExportError(
                f"{name} needs packages that are not installed: pip install {' '.join(missing)}, or leave {name!r} out of formats"
            )
    return chosen


def inputs(
    model: nn.Module, example: tuple[torch.Tensor, ...], dynamic: Mapping[str, Mapping[int, str]]
) -> tuple[Input, ...]:
    """Return the inputs for tracing by the parameter names of the model's `forward`.

    Args:
        model: the unsharded model.
        example: a tensor for each of the first parameters.
        dynamic: dimensions that may have any size, by parameter and number of the dimension, with a name for each.

    Raises:
        ValueError: `forward` takes fewer, has no such parameter, or the tensor no such dimension; or a dynamic one is of size 0 or 1.
    """
    parameters = [
        each.name for each in signature(model.forward).parameters.values() if each.kind is not each.KEYWORD_ONLY
    ]
    names = parameters[: len(example)]
    if len(names) < len(example):
        raise ValueError(
            f"example_inputs has {len(example)} tensors, and forward of {type(model).__name__} takes {', '.join(parameters) or 'none'}"
        )
    if unknown := sorted(dynamic.keys() - set(names)):
        raise ValueError(f"dynamic_shapes names {', '.join(unknown)}, and example_inputs has {', '.join(names)}")
    for name, tensor in zip(names, example, strict=True):
        for dimension, called in dynamic.get(name, {}).items():
            if not 0 <= dimension < tensor.ndim:
                raise ValueError(
                    f"dynamic_shapes: {name} has {tensor.ndim} dimensions, from 0 on, and no dimension {dimension}"
                )
            if tensor.shape[dimension] < 2:
                raise ValueError(
                    f"dynamic_shapes: dimension {dimension} of {name} has size {tensor.shape[dimension]} in example_inputs, which torch takes for a "
                    "constant: make it 2 or more"
                )
            if not called.isidentifier():
                raise ValueError(
                    f"dynamic_shapes: dimension {dimension} of {name} needs a name such as batch, and has {called!r}"
                )
    return tuple(
        Input(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            {str(dimension): called for dimension, called in dynamic.get(name, {}).items()},
        )
        for name, tensor in zip(names, example, strict=True)
    )


@dataclass(frozen=True)
class Program:
    """The traced program of a model, for formats that store it.

    Attributes:
        model: the unsharded model.
        example: the inputs that it was traced with.
        described: their description for the record.
        exported: the result of torch.export.
    """

    model: nn.Module
    example: tuple[torch.Tensor, ...]
    described: tuple[Input, ...]
    exported: Any


def traced(model: nn.Module, example: tuple[torch.Tensor, ...], described: tuple[Input, ...]) -> Program:
    """Return the model's program, as torch.export traces it.

    Raises:
        ExportError: torch cannot trace its `forward`.
    """
    # torch must know that two dimensions of one name are equal.
    named = {called: torch.export.Dim(called) for each in described for called in each.dynamic.values()}
    shapes = {
        each.name: {int(dimension): named[called] for dimension, called in each.dynamic.items()} or None
        for each in described
    }
    try:
        # strict: before 2.7, torch would trace the bytecode, which fails more often and gives the same program.
        exported = torch.export.export(model, example, dynamic_shapes=shapes if named else None, strict=False)
    except Exception as error:
        raise ExportError(
            f"torch.export cannot follow the forward of {type(model).__name__}: {reason(error)}. Steps that depend on values of tensors "
            "need torch.cond or torch.where; or export the state alone (torch, safetensors)"
        ) from error
    return Program(model, example, described, exported)


def write(
    formats: tuple[Format, ...], weights: Weights, program: Program | None, folder: Path, metadata: Mapping[str, str]
) -> None:
    """Write these formats to a folder.

    Args:
        formats: the result of `checked`.
        weights: the weights of the model.
        program: the result of `traced`; None if no format needs it.
        folder: an empty folder.
        metadata: texts for the header of the safetensors file.

    Raises:
        ExportError: a format cannot store the model, or the disk is full.
    """
    writers: dict[Format, Callable[[Path], None]] = {
        "torch": lambda path: torch.save(dict(weights.state), path),
        "safetensors": lambda path: _safetensors(weights, path, metadata),
    }
    if program:
        writers["torch.export"] = lambda path: torch.export.save(program.exported, path)
        writers["onnx"] = lambda path: _onnx(program, _size(weights), path)
    for name in formats:
        path = folder / FILES[name]
        try:
            writers[name](path)
        except ExportError:
            raise
        except Exception as error:
            raise not_written(path, error) from error


def not_written(path: Path, error: Exception) -> ExportError:
    """Return the error for a file that a library could not write: each reports a full disk differently."""
    full = shutil.disk_usage(path.parent).free < FULL
    return ExportError(
        f"{path.name} cannot be written: {f'the disk of {path.parent} is full' if full else reason(error)}"
    )


def _safetensors(weights: Weights, path: Path, metadata: Mapping[str, str]) -> None:
    tensors: dict[str, torch.Tensor] = {}
    places: set[int] = set()
    for name, value in weights.state.items():
        if name in weights.tied:
            continue
        if not isinstance(value, torch.Tensor):
            raise ExportError(
                f"safetensors holds tensors alone, and {name} is a {type(value).__name__}: take the format torch for this model"
            )
        tensor = value.contiguous()
        place = tensor.untyped_storage().data_ptr()
        # The format cannot store two views of one memory.
        tensors[name] = tensor.clone() if place in places else tensor
        if tensor.numel():
            places.add(place)
    # As `safetensors.torch.save_model` does: `load_model` then finds the tied ones.
    save_tensors(tensors, path, {**metadata, **weights.tied})


def save_tensors(tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Write a safetensors file. The tensors are contiguous, and share no memory.

    Raises:
        Exception: of the package, for a type that the format does not know, and for a full disk.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - optional

    save_file(dict(tensors), path, metadata=dict(metadata))
    _sort_metadata(path)
    # safetensors creates the file with mode 0600: give it the default mode of the folder's other files.
    ordinary = path.with_suffix(".mode")
    ordinary.touch()
    path.chmod(ordinary.stat().st_mode & 0o777)
    ordinary.unlink()


def _sort_metadata(path: Path) -> None:
    """Sort the texts in the header, which safetensors writes in random order: equal exports have equal bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        # Blanks at the end align the tensors. A text that JSON can write in two ways may have another length: any order is valid.
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def _onnx(program: Program, size: int, path: Path) -> None:
    """Use torch's exporter, or the older one if an operator is missing: both handle what torch.export could trace."""
    with warnings.catch_warnings():
        # Deprecation warnings of torch and onnxscript about their own code.
        warnings.simplefilter("ignore")
        try:
            torch.onnx.export(program.exported, (), str(path), dynamo=True, verbose=False, external_data=size > LARGE)
        except Exception as error:  # noqa: BLE001 - of many kinds
            # Torch 2.6 with the current onnxscript has no batch norm.
            why = reason(error.__cause__ or error)
            logger.warning("torch's ONNX exporter cannot translate the model (%s): the older one is used", why)
            torch.onnx.export(
                program.model,
                program.example,
                str(path),
                dynamo=False,
                input_names=[each.name for each in program.described],
                dynamic_axes={
                    each.name: {int(dimension): called for dimension, called in each.dynamic.items()}
                    for each in program.described
                },
            )


def _size(weights: Weights) -> int:
    return sum(
        value.numel() * value.element_size()
        for name, value in weights.state.items()
        if isinstance(value, torch.Tensor) and name not in weights.tied
    )
