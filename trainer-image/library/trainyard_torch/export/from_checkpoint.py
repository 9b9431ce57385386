"""Export the weights of a checkpoint to safetensors files, file by file, without the model's program and without all of it in memory."""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainyard_torch.checkpoint.history import History, verify
from trainyard_torch.checkpoint.loader import CheckpointError, NoUsableCheckpointError
from trainyard_torch.checkpoint.manifest import CorruptCheckpointError
from trainyard_torch.checkpoint.plain_values import PlainLoadPlanner
from trainyard_torch.checkpoint.store import Store
from trainyard_torch.checkpoint.streams import Reader, patch_torch_checkpoint
from trainyard_torch.export.environment import environment
from trainyard_torch.export.exporting import publish
from trainyard_torch.export.formats import FILES, checked, not_written, save_tensors
from trainyard_torch.export.record import Code, ExportError, Provenance, Record, configured, jsonable
from trainyard_torch.export.weights import add_to_digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trainyard_torch.checkpoint.manifest import Manifest

MAX_FILE_BYTES = 5_000_000_000
"""Size of the tensors of one file, in bytes: what Hugging Face's libraries write by default."""
INDEX = "model.safetensors.index.json"

logger = logging.getLogger(__name__)


def export_checkpoint(  # noqa: PLR0913 - two folders, each with its options
    checkpoints: str,
    url: str,
    *,
    step: int | None = None,
    key: str = "train_state",
    tied: Mapping[str, str] | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
    configuration: Mapping[str, Any] | None = None,
    checkpoint_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Record:
    """Export a model from a checkpoint of any parallelism. One process calls it, which needs no process group and no GPU.

    It holds the tensors of one file in memory at a time. Up to `max_file_bytes` there is one file, which is that of `export_model`; larger
    models have several, and the index of Hugging Face's libraries. A training in the folder of the checkpoints may continue.

    Args:
        checkpoints: the folder of all checkpoints of the training.
        url: the export's own folder: a path, or `s3://bucket/folder` and the like.
        step: the step of the checkpoint. None: the newest usable one.
        key: the name under which `TrainState` was saved; `Loop` uses "train_state".
        tied: names that share a tensor, each with the name that holds it. Checkpoints have all of them; only the latter is written.
        max_file_bytes: the size of a file's tensors in bytes. A larger tensor has a file of its own.
        configuration: the program's arguments, for the record.
        checkpoint_options: options for the file system of the checkpoints.
        options: options for the file system of the export.

    Returns:
        The record that is stored with the files.

    Raises:
        ValueError: max_file_bytes is not positive.
        CheckpointError: there is no checkpoint, none of this step, or none is usable.
        ExportError: the checkpoint has no such model, or values that are no tensors. Or tied tensors differ, a package is missing, or the
            folder has other files.
        StoreError: a store cannot be used.
    """
    if max_file_bytes < 1:
        raise ValueError(f"max_file_bytes must be a number of bytes from 1 on, not {max_file_bytes}")
    checked(("safetensors",))
    patch_torch_checkpoint()
    source, target = Store(checkpoints, **(checkpoint_options or {})), Store(url, **options)
    manifest = _newest(source, step)
    weights = _StoredWeights(source, manifest, key)
    names = dict(tied or {})
    weights.check_ties(names)
    origin = {**Provenance(checkpoint=manifest, checkpoints=source.url).origin(), "key": key}
    files = _planned(weights, names, max_file_bytes)

    def write(folder: Path) -> Record:
        digest = _written(folder, weights, files, names)
        return Record(
            model="",
            parameters=sum(entry.size.numel() for name, entry in weights.entries.items() if name not in names),
            weights=digest,
            tied=names,
            code=Code(),
            configuration=configured(configuration or {}, []),
            data=jsonable(manifest.data),
            environment=environment(os.environ, manifest.world_size),
            metrics=jsonable(manifest.metrics),
            checkpoint=origin,
            time=time.time(),
        )

    wanted = {file.name for file in files}

    def same(there: Record) -> bool:
        return there.checkpoint == origin and there.tied == names and wanted <= there.files.keys()

    return publish(target, same, write)


@dataclass(frozen=True)
class _File:
    """One file of the export: its name, and the names that are read for it, tied ones too, in their order."""

    name: str
    names: list[str]


class _StoredWeights:
    """The weights of a model in a checkpoint: what they are, and their values in parts.

    Attributes:
        entries: the metadata of each tensor, by the name in the plain model, in the order of the names.

    Raises:
        ExportError: there are none under this key, or one is no tensor.
    """

    def __init__(self, store: Store, manifest: Manifest, key: str) -> None:
        self._reader, self._prefix = Reader(store, str(manifest.name), manifest.files), f"{key}.model."
        found = self._reader.read_metadata().state_dict_metadata
        own = {name.removeprefix(self._prefix): entry for name, entry in found.items() if name.startswith(self._prefix)}
        if not own:
            has = sorted({name.partition(".")[0] for name in found})
            raise ExportError(
                f"checkpoint {manifest.name} has no model under {key!r}, but {', '.join(has)}: name its key"
            )
        self.entries: dict[str, TensorStorageMetadata] = {}
        for name, entry in sorted(own.items()):
            if not isinstance(entry, TensorStorageMetadata):
                raise ExportError(
                    f"safetensors holds tensors alone, and {name} is none: load_weights and export_model write it in the format torch"
                )
            self.entries[name] = entry

    def bytes_of(self, name: str) -> int:
        entry = self.entries[name]
        return int(entry.size.numel() * entry.properties.dtype.itemsize)

    def read(self, names: list[str]) -> dict[str, torch.Tensor]:
        """Return these tensors, in host memory."""
        found = {
            f"{self._prefix}{name}": torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in ((name, self.entries[name]) for name in names)
        }
        # The steps of `dcp.load`, which would wait for the other processes of a process group.
        metadata, planner = self._reader.read_metadata(), PlainLoadPlanner()
        planner.set_up_planner(found, metadata, is_coordinator=True)
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)
        plan = self._reader.prepare_local_plan(planner.create_local_plan())
        self._reader.read_data(planner.finish_plan(plan), planner).wait()
        return {name: found[f"{self._prefix}{name}"] for name in names}

    def check_ties(self, tied: Mapping[str, str]) -> None:
        """Raise ExportError unless all names are there, and no name that holds a tensor is tied itself."""
        for name, holder in tied.items():
            if missing := [each for each in (name, holder) if each not in self.entries]:
                raise ExportError(
                    f"tied: the checkpoint has no {missing[0]}, but {', '.join(list(self.entries)[:5])} and so on"
                )
            if holder in tied:
                raise ExportError(
                    f"tied: {name} is tied to {holder}, which is tied itself: name the one that holds the tensor"
                )


def _newest(store: Store, step: int | None) -> Manifest:
    """Return the manifest of the newest usable checkpoint, whose files are verified."""
    history = History(store)
    usable = history.usable()
    wanted = [name for name in usable if step in (None, name.step)]
    for name in wanted:
        try:
            manifest = history.listed(name)
            verify(store, manifest, sorted(manifest.files))
        except CorruptCheckpointError as error:
            logger.warning("skipped checkpoint %s: %s", name, error)
        else:
            return manifest
    if wanted:
        raise NoUsableCheckpointError(f"no checkpoint in {store.url} is usable: restore one")
    there = f"there are {', '.join(str(name.step) for name in sorted(usable))}" if usable else "there are none"
    raise CheckpointError(
        f"there is no checkpoint{f' of step {step}' if step is not None else ''} in {store.url}: {there}"
    )


def _planned(weights: _StoredWeights, tied: Mapping[str, str], max_file_bytes: int) -> list[_File]:
    """Distribute the tensors over files, in the order of their names, in which the digest of all weights takes them."""
    groups: list[list[str]] = [[]]
    size = 0
    for name in weights.entries:
        # Tied names are read, and not written.
        more = 0 if name in tied else weights.bytes_of(name)
        if size and size + more > max_file_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += more
    if len(groups) == 1:
        return [_File(FILES["safetensors"], groups[0])]
    return [
        _File(f"model-{number:05}-of-{len(groups):05}.safetensors", group)
        for number, group in enumerate(groups, start=1)
    ]


def _written(folder: Path, weights: _StoredWeights, files: list[_File], tied: Mapping[str, str]) -> str:
    """Write all files and, for several, the index. Return the digest of the weights."""
    digest = hashlib.sha256()
    shared: dict[str, str] = {}
    places: dict[str, str] = {}
    for file in files:
        kept = weights.read([name for name in file.names if name not in tied])
        for name in file.names:
            value = kept if name in kept else weights.read([name])
            add_to_digest(digest, name, value[name])
            if name in tied or name in tied.values():
                shared[name] = _digest_of(value[name])
            del value
        places.update(dict.fromkeys(kept, file.name))
        # The digest of all weights is known with the last one only.
        alone = {} if len(files) > 1 else {"weights_sha256": digest.hexdigest(), **tied}
        _save(kept, folder / file.name, {"format": "pt", **alone})
        # Before the next file is read. DCP's planners leave reference cycles, with the tensors in them.
        kept = {}
        gc.collect()
    for name, holder in tied.items():
        if shared[name] != shared[holder]:
            raise ExportError(f"tied: {name} and {holder} have other values in the checkpoint: they are not tied")
    if len(files) > 1:
        size = sum(weights.bytes_of(name) for name in places)
        index = {"metadata": {"total_size": size, "weights_sha256": digest.hexdigest()}, "weight_map": places}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return digest.hexdigest()


def _digest_of(tensor: torch.Tensor) -> str:
    found = hashlib.sha256()
    add_to_digest(found, "", tensor)
    return found.hexdigest()


def _save(tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    try:
        save_tensors(tensors, path, metadata)
    except Exception as error:
        raise not_written(path, error) from error
