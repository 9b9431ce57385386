"""What a training goes on from: the best checkpoint that is whole, in memory or in the store. All processes look together."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.stateful import Stateful

from trainyard_torch.checkpoint.history import verify
from trainyard_torch.checkpoint.manifest import BrokenError, Manifest, Name
from trainyard_torch.checkpoint.ranks import FailedElsewhereError
from trainyard_torch.checkpoint.state import fits, keys_of, plain, put
from trainyard_torch.checkpoint.store import StoreError
from trainyard_torch.checkpoint.streams import reader
from trainyard_torch.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainyard_torch.checkpoint.history import History
    from trainyard_torch.checkpoint.memory import Memory
    from trainyard_torch.checkpoint.ranks import Ranks
    from trainyard_torch.checkpoint.store import Store

logger = logging.getLogger(__name__)


class CheckpointError(Exception):
    """A checkpoint could not be written or read. The text says which, and what to do."""


class NoneWholeError(CheckpointError):
    """There are checkpoints, and none of them is whole. A restart would not help, and to begin anew would lose them."""

    exit_code = 95


class NotStoredError(CheckpointError):
    """A checkpoint that was waited for, such as the last of a training, could not be stored. A restart goes on from the one before."""

    exit_code = 97


@dataclass(frozen=True)
class Restoring:
    """Where it is looked for, and by whom. `history` is asked on rank 0 alone; `mesh`: how the processes are arranged."""

    ranks: Ranks
    store: Store
    history: History
    memory: Memory | None
    mesh: Mapping[str, int]

    def best(self, state: Mapping[str, Any], *, step: int | None = None) -> tuple[Manifest | None, bool]:
        """Put it into `state`. Returns its manifest, or None where there is nothing yet, and whether it came from memory.

        Args:
            state: as `Checkpoints.load` takes it.
            step: of the one in the store that is wished for; None: the newest.

        Raises:
            NoneWholeError: there are checkpoints, and all of them are broken.
            CheckpointError: the checkpoint is of another model.
            StoreError: the store cannot be read.
        """
        common = self._in_memory()
        stored, remembered, marks = self.ranks.first(
            lambda: (
                self.history.usable(),
                self.history.counting(common),
                {claim.attempt: claim.mark for claim in self.history.claims()},
            )
        )
        stored = [name for name in stored if step in (None, name.step)]
        newest = stored[0].step if stored else 0
        for name in remembered:
            if name.step >= newest and (found := self._recalled(state, name, marks)):
                return found, True
        return self._loaded(state, stored), False

    def _in_memory(self) -> list[Name]:
        """What all have their part of."""
        names = self.ranks.gather(self.memory.names() if self.memory else [])
        return [*set(names[0]).intersection(*names)]

    def _recalled(self, state: Mapping[str, Any], name: Name, marks: Mapping[int, str]) -> Manifest | None:
        mine: list[tuple[Manifest, dict[str, Any]]] = []
        try:
            self.ranks.each(lambda: mine.append(self._read(name, marks)))
            # All have theirs. To ask for the state may be done by all together alone, so not before.
            ((manifest, saved),) = mine
            target = self._asked_for(state, [*keys_of(saved)])
            self.ranks.each(lambda: fits(target, saved))
        except FailedElsewhereError as error:
            self._pass_over(name, f"in memory {error}")
            return None
        put(target, saved)
        _given(state, target)
        return manifest

    def _asked_for(self, state: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
        """What there is to fill in from a checkpoint with these keys. Raises FailedElsewhereError where a process cannot tell."""
        made: list[dict[str, Any]] = []
        self.ranks.each(lambda: made.append(plain(state, keys)))
        return made[0]

    def _read(self, name: Name, marks: Mapping[int, str]) -> tuple[Manifest, dict[str, Any]]:
        if self.memory is None:
            raise BrokenError("this process keeps none")
        manifest, saved = self.memory.read(name, marks)
        made, here = (manifest.world, dict(manifest.mesh)), (self.ranks.world, dict(self.mesh))
        if made != here:
            raise BrokenError(f"it is of {made[0]} processes, mesh {made[1]}, and these are {here[0]}, mesh {here[1]}")
        return manifest, saved

    def _loaded(self, state: Mapping[str, Any], names: list[Name]) -> Manifest | None:
        wrong: list[str] = []
        for name in names:
            try:
                manifest = self._verified(name)
            except BrokenError as error:
                wrong.append(f"{name}: {error}")
                self._pass_over(name, str(error))
                continue
            try:
                self._filled(state, name)
            except (Exception, CheckpointException) as error:
                raise CheckpointError(
                    f"checkpoint {name} cannot be loaded into this program: {reason(error)}"
                ) from error
            return manifest
        if self.ranks.first(self.history.has_any):
            raise NoneWholeError(
                f"no checkpoint in {self.store.url} is whole ({'; '.join(wrong) or 'the last one is gone'}): restore one, or begin in "
                "another folder"
            )
        return None

    def _filled(self, state: Mapping[str, Any], name: Name) -> None:
        source = reader(self.store, str(name))
        keys = self.ranks.first(lambda: [*source.read_metadata().state_dict_metadata])
        target = self._asked_for(state, keys)
        dcp.load(target, storage_reader=source, process_group=self.ranks.group)
        _given(state, target)

    def _verified(self, name: Name) -> Manifest:
        """Raises BrokenError where it is not whole; StoreError where nobody can tell, as the store did not answer."""
        manifest = self.ranks.first(lambda: self.history.listed(name))
        # Each reads its share of the files.
        mine = sorted(manifest.files)[self.ranks.rank :: self.ranks.world]
        try:
            self.ranks.each(lambda: verify(self.store, manifest, mine))
        except FailedElsewhereError as error:
            raise (BrokenError if error.kinds == {"BrokenError"} else StoreError)(str(error)) from None
        return manifest

    def _pass_over(self, name: Name, why: str) -> None:
        if self.ranks.rank == 0:
            logger.warning("checkpoint %s is passed over: %s", name, why)


def reason(error: BaseException) -> str:
    """The first line of what torch says of it, which else is a page with each rank's traceback."""
    if isinstance(error, CheckpointException):
        rank, (first, _) = min(error.failures.items())
        return f"rank {rank}: {first_line(first)}"
    return first_line(error)


def _given(state: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Objects go on from what was found; of state dicts, tensors and nested values are filled in already."""
    for name, value in state.items():
        if isinstance(value, Stateful):
            value.load_state_dict(found[name])
