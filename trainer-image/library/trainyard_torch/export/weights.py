"""Gather the full state of a sharded model on rank 0, and load weights from a checkpoint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor

from trainyard_torch.checkpoint.communicator import Communicator, RankFailedError
from trainyard_torch.checkpoint.history import History
from trainyard_torch.checkpoint.loader import CheckpointError, CheckpointLoader
from trainyard_torch.checkpoint.store import Store
from trainyard_torch.checkpoint.streams import patch_torch_checkpoint
from trainyard_torch.export.record import ExportError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from trainyard_torch.checkpoint.manifest import Manifest


@dataclass(frozen=True)
class Weights:
    """The full state dict of a model.

    Attributes:
        state: on the CPU, by the names of the plain model. Values other than tensors stay as they are.
        tied: tied names, each with the name that holds the tensor.
        spread: whether no process had all of it.
    """

    state: Mapping[str, Any]
    tied: Mapping[str, str] = field(default_factory=dict)
    spread: bool = False

    @property
    def parameters(self) -> int:
        """The number of elements; tied ones count once."""
        return sum(
            value.numel()
            for name, value in self.state.items()
            if isinstance(value, torch.Tensor) and name not in self.tied
        )

    def digest(self) -> str:
        """Return the SHA-256 of names, types, shapes and values in hexadecimal, independent of the order of the names."""
        found = hashlib.sha256()
        for name in sorted(self.state):
            add_to_digest(found, name, self.state[name])
        return found.hexdigest()


def add_to_digest(digest: Any, name: str, value: Any) -> None:
    """Update a digest of weights with an entry of the state. Entries go in by the order of their names."""
    if isinstance(value, torch.Tensor):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(_bytes(value.contiguous()).numpy())
    else:
        digest.update(f"{name} {value!r}\n".encode())


class _Word(NamedTuple):
    """The metadata of a process's entry: for a tensor its shape, dtype and the name that it is tied to; else the value."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    tied: str
    value: Any


def gathered(models: Sequence[nn.Module], communicator: Communicator) -> Weights:
    """Return the full state on rank 0, and an empty one on the others. All processes call it.

    Sharded tensors (FSDP, tensor parallel) are gathered one after the other; the stages of a pipeline are sent. A tensor that is complete
    on rank 0's CPU is shared with the model.

    Args:
        models: the model, or this process's stages of it.
        communicator: the communicator of all processes.

    Raises:
        ExportError: a tensor has no values, or cannot be stored: on all processes.
    """
    own: dict[str, Any] = {}
    try:
        communicator.run_on_all(lambda: own.update(_own(models)))
    except RankFailedError as error:
        raise ExportError(str(error)) from None
    words, owners = _agreed(own, communicator)
    # Gather all sharded tensors before sending: a process that waits in a send cannot take part in a collective.
    kept: dict[str, Any] = {}
    for name, value in own.items():
        whole = _whole(value)
        if owners[name] == communicator.rank and not words[name].tied:
            kept[name] = whole.detach().cpu() if isinstance(whole, torch.Tensor) else whole
    for name, owner in owners.items():
        if owner and not words[name].tied:
            _send(name, words[name], owner, kept, communicator)
    if communicator.rank:
        return Weights({})
    tied = {name: word.tied for name, word in words.items() if word.tied}
    state = {name: _alone(kept[tied.get(name, name)]) for name in owners}
    # One object for all its names, so that files store it once.
    state.update({name: state[other] for name, other in tied.items()})
    spread = any(owners.values()) or any(isinstance(value, DTensor) for value in own.values())
    return Weights(state, tied, spread)


def load_weights(
    model: nn.Module | Sequence[nn.Module],
    url: str,
    *,
    step: int | None = None,
    key: str = "train_state",
    **options: Any,
) -> Manifest:
    """Load the weights of a checkpoint into a model, without its optimizer, and without disturbing a training in the same folder.

    Works with or without a process group, at any parallelism of the model. All processes call it.

    Args:
        model: the model to fill; for a pipeline, this process's stages.
        url: the folder of all checkpoints of the training.
        step: the step of the checkpoint; None: the newest usable one.
        key: the name under which `TrainState` was saved; `Loop` uses "train_state".
        options: options for fsspec's file system.

    Returns:
        The manifest of the checkpoint.

    Raises:
        NoUsableCheckpointError: there are checkpoints, but none of them is usable.
        CheckpointError: there is no checkpoint, none of this step, or it is of another model.
        ExportError: a tensor of the model has no memory.
        StoreError: the store cannot be read.
    """
    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    patch_torch_checkpoint()
    store, communicator = Store(url, **options), Communicator(borrow=True)
    history = History(store)
    found = communicator.run_on_rank0(lambda: [name.step for name in history.usable()])
    if step is not None and step not in found:
        there = f"there are {', '.join(map(str, sorted(set(found))))}" if found else "there are none"
        raise CheckpointError(f"there is no checkpoint of step {step} in {store.url}: {there}")
    own = _own(models)
    manifest, _ = CheckpointLoader(communicator, store, history, None, {}).best({key: {"model": own}}, step=step)
    if manifest is None:
        raise CheckpointError(f"there is no checkpoint in {store.url}: name the folder that Checkpoints was given")
    # Tensors are filled in place; other values have to be passed to the model.
    if any(not isinstance(value, torch.Tensor) for value in own.values()):
        for each in models:
            set_model_state_dict(each, {name: own[name] for name in _state(each)})
    return manifest


def _own(models: Sequence[nn.Module]) -> dict[str, Any]:
    """Return this process's entries. Raises ExportError if one cannot be exported."""
    for model in models:
        for name, tensor in chain(model.named_parameters(), model.named_buffers()):
            if tensor.is_meta:
                raise ExportError(f"{name} is on the meta device and has no values: fill the model first")
    found = {name: value for model in models for name, value in _state(model).items()}
    for name, value in found.items():
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            raise ExportError(f"{name} is no dense tensor ({value.layout}): make it one before the export")
    return found


def _state(model: nn.Module) -> dict[str, Any]:
    """Add a placeholder to a part without any state, such as the activations between two stages: torch refuses it."""
    has_any = next(chain(model.parameters(), model.buffers()), None) is not None
    return dict(get_model_state_dict(model)) if has_any else {}


def _agreed(own: Mapping[str, Any], communicator: Communicator) -> tuple[dict[str, _Word], dict[str, int]]:
    """Return the entry of each name, and the lowest rank that has it: the same on all processes, in the same order."""
    # With data parallelism thousands have the same names: one of them reports for all.
    names = hashlib.sha256("\n".join(own).encode()).hexdigest()
    speaks = communicator.gather(names).index(names) == communicator.rank
    words: dict[str, _Word] = {}
    owners: dict[str, int] = {}
    for rank, entries in enumerate(communicator.gather(_words(own) if speaks else {})):
        for name, word in entries.items():
            words.setdefault(name, word)
            owners.setdefault(name, rank)
    return words, owners


def _words(own: Mapping[str, Any]) -> dict[str, _Word]:
    seen: dict[Any, str] = {}
    words = {}
    for name, value in own.items():
        if not isinstance(value, torch.Tensor):
            words[name] = _Word((), None, "", value)
            continue
        here = value.to_local() if isinstance(value, DTensor) else value
        first = name
        # The shard of a small tensor may be empty on some ranks, and have no device; never on the lowest rank.
        if here.numel():
            place = (here.device, here.data_ptr(), tuple(here.shape), here.stride(), here.dtype)
            first = seen.setdefault(place, name)
        words[name] = _Word(tuple(value.shape), value.dtype, "" if first == name else first, None)
    return words


def _whole(value: Any) -> Any:
    """Gather a tensor: a collective of all processes with a shard. Raises nothing by itself."""
    if not isinstance(value, DTensor):
        return value
    # With CPU offload it is on another device than its mesh.
    return value.to(value.device_mesh.device_type).full_tensor()


def _send(name: str, word: _Word, owner: int, kept: dict[str, Any], communicator: Communicator) -> None:
    """Send a tensor from the rank that has it to rank 0."""
    if word.dtype is None:
        if communicator.rank == 0:
            kept[name] = word.value
        return
    if communicator.rank == owner:
        tensor = kept.pop(name).contiguous()
        if tensor.numel():
            dist.send(_bytes(tensor), dst=0, group=communicator.group)
    elif communicator.rank == 0:
        kept[name] = torch.empty(word.shape, dtype=word.dtype)
        if kept[name].numel():
            dist.recv(_bytes(kept[name]), src=owner, group=communicator.group)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor, in its own memory: gloo and numpy do not support all types."""
    return tensor.reshape(-1).view(torch.uint8)


def _alone(value: Any) -> Any:
    """Return a view of a larger memory as a tensor of its own: files would store all of that memory."""
    if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() != value.numel() * value.element_size():
        return value.clone()
    return value
