"""The checkpoints of a training, as its program uses them: load the best, save when it is due, while the training goes on."""

from __future__ import annotations

import copy
import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils._pytree import tree_map

from trainyard_torch.checkpoint.history import History, LeftBehindError
from trainyard_torch.checkpoint.interval import Due
from trainyard_torch.checkpoint.lineage import Keep
from trainyard_torch.checkpoint.manifest import BrokenError, Manifest, Name
from trainyard_torch.checkpoint.ranks import Ranks
from trainyard_torch.checkpoint.store import Store
from trainyard_torch.checkpoint.streams import reader, writer

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)
UNREADABLE = 95
"""The exit code of a program whose checkpoints are all broken: a restart would not help, and to begin anew would lose them."""


class CheckpointError(Exception):
    """A checkpoint could not be written or read. The text says which, and what to do."""


class NoneWholeError(CheckpointError):
    """There are checkpoints, and none of them is whole."""


class Checkpoints:
    """To be made, and its methods to be called, by all processes of the training at the same time.

    Args:
        url: the folder of all checkpoints of this job: a path that all processes share, or `s3://bucket/folder` and the like.
        keep: which ones stay.
        due: when one is due.
        attempt: which attempt of the job this is; by default what the agent says, or the one after the last.
        mesh: how the processes are arranged, for the record: `{"data": 2, "tensor": 4}`.
        options: for fsspec's file system.

    Raises:
        StoreError: the store cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        keep: Keep | None = None,
        due: Due | None = None,
        attempt: int | None = None,
        mesh: Mapping[str, int] | None = None,
        **options: object,
    ) -> None:
        self._keep, self._due, self._mesh = keep or Keep(), due or Due(), dict(mesh or {})
        self._store = Store(url, **options)
        self._main, self._background = Ranks(), Ranks()
        given = os.environ.get("TRAINYARD_ATTEMPT")
        attempt = int(given) if attempt is None and given else attempt
        attempt = self._main.first(lambda: History(self._store, attempt).attempt)
        self._history = History(self._store, attempt)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._began = self._last = time.monotonic()
        self._last_step, self._stall = 0, 0.0

    @property
    def stall(self) -> float:
        """Seconds for which the training stood still for the last checkpoint; 0 before the first."""
        return self._stall

    def load(self, state: Mapping[str, Any]) -> Manifest | None:
        """Put the best checkpoint that is whole into `state`, and begin this attempt from there. None: there is none yet.

        Args:
            state: state dicts, or objects with `state_dict` and `load_state_dict`, by name; as given to `save`. Tensors are filled in
                place, whatever world size or parallelism they were saved from.

        Raises:
            NoneWholeError: there are checkpoints, and all of them are broken.
            CheckpointError: the checkpoint is of another model.
            LeftBehindError: a later attempt has begun already.
            StoreError: the store cannot be read.
        """
        manifest, passed_over = self._best()
        for name, why in passed_over:
            self._say(f"checkpoint {name} is passed over: {why}")
        if manifest is None and passed_over:
            listed = "; ".join(f"{name}: {why}" for name, why in passed_over)
            raise NoneWholeError(
                f"no checkpoint in {self._store.url} is whole ({listed}): restore one, or empty the folder"
            )
        base = manifest.name if manifest else None
        self._main.first(lambda: self._history.claim(base))
        if manifest is None:
            return None
        try:
            dcp.load(dict(state), storage_reader=reader(self._store, str(base)), process_group=self._main.group)
        except Exception as error:
            raise CheckpointError(f"checkpoint {base} does not fit this program: {_reason(error)}") from error
        self._last_step = manifest.step
        self._say(f"goes on from checkpoint {base}, step {manifest.step}")
        return manifest

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be saved after this step: the same answer on all. To be asked after each step.

        None is due while the last one is still being written. Rank 0 decides one step ahead, so that nobody waits for the answer.
        """
        answer = self._main.told()
        self._main.tell(self._idle and self._wished(step + 1))
        return answer

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        data: Mapping[str, int] | None = None,
        metrics: Mapping[str, float] | None = None,
        wait: bool = False,
    ) -> None:
        """Save what `state` is now. Comes back as soon as it is copied; the rest happens beside the training.

        A checkpoint that could not be written is logged, and the training goes on; the next one is tried when it is due.

        Args:
            step: the last step that is in it.
            state: as for `load`.
            data: where the data stands (`Batches.state`).
            metrics: numbers by which checkpoints are compared.
            wait: come back when it is stored; needed before the program ends.

        Raises:
            CheckpointError: only with `wait`: it could not be written.
            LeftBehindError: a later attempt has begun, now or when the last one was written: this process is to end.
        """
        began = time.monotonic()
        self._finish_last()
        manifest = Manifest(
            step,
            self._history.attempt,
            self._main.world,
            self._mesh,
            dict(data or {}),
            dict(metrics or {}),
            time.time(),
        )
        self._pending = self._worker.submit(self._write, manifest, staged(state))
        self._last, self._last_step = time.monotonic(), step
        self._stall = self._last - began
        if wait:
            self._finish_last(strict=True)

    def close(self) -> None:
        """Wait until the last one is stored. Raises as `save` with `wait` does."""
        try:
            self._finish_last(strict=True)
        finally:
            self._worker.shutdown()

    def _best(self) -> tuple[Manifest | None, list[tuple[Name, str]]]:
        """The best checkpoint that is whole, and those that would have been better, with what is wrong with them."""
        passed_over: list[tuple[Name, str]] = []
        for name in self._main.first(self._history.usable):
            try:
                manifest: Manifest = self._main.first(lambda name=name: self._history.measured(name))
            except BrokenError as error:
                passed_over.append((name, str(error)))
                continue
            # Each reads its share of the files.
            mine = sorted(manifest.files)[self._main.rank :: self._main.world]
            wrong = [text for text in self._main.gather(self._history.damage(manifest, mine)) if text]
            if not wrong:
                return manifest, passed_over
            passed_over.append((name, "; ".join(wrong)))
        return None, passed_over

    def _write(self, manifest: Manifest, state: dict[str, Any]) -> None:
        """In the thread beside the training, on all processes at once."""
        ranks, folder = self._background, str(manifest.name)
        out, streams = writer(self._store, folder)
        dcp.save(state, storage_writer=out, process_group=ranks.group)
        files = {path.removeprefix(f"{folder}/"): file for path, file in streams.written.items()}
        every = [pair for found in ranks.gather(files) for pair in found.items()]
        ranks.first(lambda: self._history.commit(manifest.with_files(dict(every))))
        ranks.first(lambda: self._history.tidy(self._keep))

    def _finish_last(self, *, strict: bool = False) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except LeftBehindError:
            raise
        except Exception as error:
            text = f"the checkpoint of step {self._last_step} was not written: {_reason(error)}"
            if strict:
                raise CheckpointError(text) from error
            self._say(f"{text}; the training goes on")

    @property
    def _idle(self) -> bool:
        return self._pending is None or self._pending.done()

    def _wished(self, step: int) -> bool:
        now = time.monotonic()
        return self._due.now(
            step=step,
            last_step=self._last_step,
            elapsed=now - self._last,
            stall=self._stall,
            age=now - self._began,
            failures=self._history.attempt - 1,
        )

    def _say(self, text: str) -> None:
        if self._main.rank == 0:
            logger.warning(text)


def staged(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of it all in the memory of the host, which the training does not change any more."""
    plain = {name: value.state_dict() if isinstance(value, Stateful) else value for name, value in state.items()}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        # torch's own stager copies what lies on a device, and takes what is on the host as it is.
        return value.detach().clone() if value.device.type == "cpu" else value

    staged: dict[str, Any] = BlockingAsyncStager().stage(tree_map(copied, plain))
    return staged


def _reason(error: BaseException) -> str:
    """The first line of what torch says of it, which else is a page with each rank's traceback."""
    if isinstance(error, dcp.api.CheckpointException):
        each = {rank: failure[0] for rank, failure in error.failures.items()}
        rank, first = min(each.items())
        return f"rank {rank}: {str(first).strip().splitlines()[0] if str(first).strip() else type(first).__name__}"
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
