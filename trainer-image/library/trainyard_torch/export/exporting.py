"""Export a trained model to a folder on a volume or in an object store, with a record, atomically."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from trainyard_torch.checkpoint.communicator import Communicator
from trainyard_torch.checkpoint.manifest import File
from trainyard_torch.checkpoint.outputs import PARTIAL
from trainyard_torch.checkpoint.store import Store
from trainyard_torch.export.code_version import version
from trainyard_torch.export.environment import environment
from trainyard_torch.export.formats import FILES, TRACED, Format, Program, checked, inputs, traced, write
from trainyard_torch.export.record import (
    NAME,
    RECORD_ARGUMENTS_VARIABLE,
    ExportError,
    Provenance,
    Record,
    configured,
    jsonable,
)
from trainyard_torch.export.unsharded import unsharded_model, unwrapped
from trainyard_torch.export.weights import gathered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from trainyard_torch.export.record import Input
    from trainyard_torch.export.weights import Weights

UNFINISHED = "UNFINISHED"
"""Marker file in the folder while an export is written: after a kill, the next export may start again there."""


def export_model(
    model: nn.Module | Sequence[nn.Module],
    url: str,
    *,
    formats: Collection[str] = ("safetensors",),
    model_factory: Callable[[], nn.Module] | None = None,
    example_inputs: torch.Tensor | tuple[torch.Tensor, ...] | None = None,
    dynamic_shapes: Mapping[str, Mapping[int, str]] | None = None,
    provenance: Provenance | None = None,
    **options: Any,
) -> Record:
    """Export a model that was trained at any parallelism. All processes call it; rank 0 writes.

    The files appear one by one, and are valid once the record exists. An existing export of the same weights in the same formats is kept.

    Args:
        model: the model as it was trained; for a pipeline, this process's stages.
        url: the export's own folder: a path, or `s3://bucket/folder` and the like.
        formats: "torch" (a state dict), "safetensors" (the same), "torch.export" and "onnx" (programs, in inference mode, on the CPU).
        model_factory: makes the model of a single process, with any weights; needed for programs of a sharded model.
        example_inputs: tensors for the first parameters of `forward`; needed for programs.
        dynamic_shapes: dimensions of the example that may have any size: `{"x": {0: "batch"}}`.
        provenance: what the program knows about the training.
        options: options for fsspec's file system.

    Returns:
        The record that is stored with the files; the same on all processes.

    Raises:
        ValueError: an argument is invalid.
        ExportError: the model cannot be exported like this, a package is missing, or the folder has other files.
        StoreError: the store cannot be used.
    """
    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    chosen = checked(formats)
    given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    _check_example(models, chosen, given)
    store, communicator = Store(url, **options), Communicator(borrow=True)
    weights = gathered(models, communicator)

    def act() -> Record:
        program: Program | None = None
        if given and TRACED.intersection(chosen):
            whole = unsharded_model(models, model_factory, weights)
            described = inputs(whole, given, dynamic_shapes or {})
            program = traced(whole, tuple(each.detach().cpu() for each in given), described)
        record = _record(
            models, weights, program.described if program else (), provenance or Provenance(), communicator.world_size
        )
        names = {FILES[name] for name in chosen}

        def written(folder: Path) -> Record:
            write(chosen, weights, program, folder, {"format": "pt", "weights_sha256": record.weights})
            return record

        return publish(store, lambda there: there.fits(record, names), written)

    return communicator.run_on_rank0(act)


def _check_example(
    models: Sequence[nn.Module], formats: tuple[Format, ...], given: tuple[torch.Tensor, ...] | None
) -> None:
    """Raise ValueError unless there is a model, and tensors to trace it with if a format needs them."""
    if not models:
        raise ValueError("model is an empty list: give the model, or all stages of it that this process holds")
    if TRACED.intersection(formats) and not given:
        raise ValueError(
            f"example_inputs is missing: {' and '.join(sorted(TRACED.intersection(formats)))} need tensors to trace"
        )
    if given is not None and not (isinstance(given, tuple) and all(isinstance(each, torch.Tensor) for each in given)):
        raise ValueError(
            "example_inputs must be a tensor, or a tuple of tensors: what forward takes besides needs a default"
        )


def read_record(url: str, *, verify: bool = False, **options: Any) -> Record | None:
    """Return the record of an export. None: there is none, or it is unfinished.

    Args:
        url: the export's folder.
        verify: whether to compare the checksums of all files by reading them; otherwise only their sizes are compared.
        options: options for fsspec's file system.

    Raises:
        ExportError: the record cannot be read, or a file does not match it.
        StoreError: the store cannot be used.
    """
    return _read(Store(url, **options), verify=verify)


def _read(store: Store, *, verify: bool = False) -> Record | None:
    text = store.read(NAME)
    if text is None:
        return None
    try:
        record = Record.parse(text)
    except ExportError as error:
        raise ExportError(f"{store.url}: {error}") from None
    for name, expected in record.files.items():
        size = store.size(name)
        if size is None:
            raise ExportError(f"{store.at(name)} is missing: export again, into another folder")
        if size != expected.size:
            raise ExportError(
                f"{store.at(name)} has {size} bytes instead of {expected.size}: export again, into another folder"
            )
        if verify and store.measure(name, expected=expected.size) != expected:
            raise ExportError(f"{store.at(name)} was changed after it was written: its checksum is another one")
    return record


def _record(
    models: Sequence[nn.Module], weights: Weights, described: tuple[Input, ...], provenance: Provenance, world_size: int
) -> Record:
    seen = (
        provenance.data if provenance.data is not None else provenance.checkpoint.data if provenance.checkpoint else {}
    )
    return Record(
        model=type(unwrapped(models[0])).__name__,
        parameters=weights.parameters,
        weights=weights.digest(),
        tied=dict(weights.tied),
        inputs=described,
        code=provenance.code or version(os.environ),
        configuration=configured(
            provenance.configuration, sys.argv[1:] if os.environ.get(RECORD_ARGUMENTS_VARIABLE) != "0" else []
        ),
        data=jsonable(seen),
        environment=environment(os.environ, world_size),
        metrics=jsonable(provenance.metrics or (provenance.checkpoint.metrics if provenance.checkpoint else {})),
        checkpoint=provenance.origin(),
        time=time.time(),
    )


def publish(store: Store, same: Callable[[Record], bool], write: Callable[[Path], Record]) -> Record:
    """Write an export into its folder, atomically, and return its record with the files.

    Args:
        store: the export's own folder.
        same: whether an export that is there already is this one: it is kept.
        write: writes all files into an empty local folder, and returns the record.

    Raises:
        ExportError: the folder holds another export, or other files.
        StoreError: the store cannot be used.
    """
    if there := _read(store):
        if same(there):
            return there
        raise ExportError(
            f"{store.url} holds another export, of {there.checkpoint.get('name') or there.model}: name another folder, or remove it"
        )
    left = _left(store)
    with store.scratch() as folder:
        record = write(folder)
        made = sorted(path for path in folder.iterdir() if path.is_file())
        files = {path.name: _measured(path) for path in made}
        whole = replace(record, files=files)
        store.write(UNFINISHED, json.dumps(sorted(files)).encode())
        for name in left - files.keys():
            store.remove(name)
        for path in made:
            store.take(path, path.name)
    store.sync_folder("")
    store.write(NAME, whole.text().encode())
    # Remove the files of an interrupted export, too.
    for name in (UNFINISHED, *(name for name in store.folders() if PARTIAL in name)):
        store.remove(name)
    return whole


def _left(store: Store) -> set[str]:
    """Return the files of an export that was interrupted here. Raises ExportError if there are others."""
    ours: set[str] = set()
    if text := store.read(UNFINISHED):
        with suppress(ValueError, TypeError):
            ours.update(json.loads(text))
    found = {name for name in (*store.files(), *store.folders()) if PARTIAL not in name} - {UNFINISHED}
    if others := sorted(found - ours):
        raise ExportError(
            f"{store.url} holds {', '.join(others[:3])}{' …' if len(others) > 3 else ''} and no export: name a folder of the export's own"
        )
    return found


def _measured(path: Path) -> File:
    with path.open("rb") as file:
        return File(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())
