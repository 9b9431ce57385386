"""The one entry: `with start() as training:` sets up what a process of a training needs, and takes it down again."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from trainyard_torch.agent import agent
from trainyard_torch.checkpoint.bounded import SilentError, within
from trainyard_torch.data.order import mixed
from trainyard_torch.errors import ends
from trainyard_torch.mesh import Parallelism, member
from trainyard_torch.notice import LONGEST_GRACE_SECONDS, Notice, patience_seconds
from trainyard_torch.parting import destroy
from trainyard_torch.place import Place
from trainyard_torch.throttle import Throttle
from trainyard_torch.watch.recorder import flight_recorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from torch.distributed.device_mesh import DeviceMesh

    from trainyard_torch.data.batches import Member

SAVED = 90
"""The exit code of a training that has saved its state and ended because it was asked to: charged to nobody."""
SEED = 2**64
PART_SECONDS = 10.0
"""How long a process that ends with an exit code of its own waits for its process groups to be given up."""


class Training:
    """One process of a training. Made by `start`.

    Attributes:
        place: its rank, and those beside it.
        device: where its tensors are to be.
        mesh: how all processes are laid out (`Parallelism.mesh`).
        seed: of the training.
        ending: what is to be closed when the training ends, and to be told by what exception, if by one.
    """

    def __init__(self, place: Place, device: torch.device, mesh: DeviceMesh, seed: int, notice: Notice | None) -> None:
        self.place, self.device, self.mesh, self.seed = place, device, mesh, seed
        self.ending = ExitStack()
        self._notice, self._agent = notice, agent()
        # To look it up in the mesh takes a tenth of a millisecond, and it is asked for in each step.
        self._member = member(mesh)
        self._group = dist.new_group(backend="gloo")
        self._asked: tuple[dist.Work, torch.Tensor] | None = None
        self._throttle = Throttle()

    @property
    def member(self) -> Member:
        """Which part of the samples this process sees: what `Batches.step` takes."""
        return self._member

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which alone prints, exports and the like."""
        return self.place.rank == 0

    def progress(
        self,
        step: int | None = None,
        *,
        phase: str = "train",
        total: int | None = None,
        loss: float | None = None,
        own_seconds: float | None = None,
    ) -> None:
        """Tell the agent how far this process is, as `trainyard_agent.progress` says; nothing where there is none."""
        if self._agent:
            self._agent.progress(step, phase=phase, total=total, loss=loss, own_seconds=own_seconds)

    def must_stop(self, step: int) -> bool:
        """Whether all processes are to save and to `leave` after this step: an eviction, a drain, a suspended job, SIGTERM to one of them.

        To be asked by all after each step, with the same number. The answer is the same on all. Without an agent, it comes a tenth of a second
        late at most, or a step where that takes longer.
        """
        if self.place.supervised and self._agent:
            return bool(self._agent.must_stop(step))
        answer = False
        if self._asked:
            (work, told), self._asked = self._asked, None
            work.wait()
            answer, pause = bool(told[0]), int(told[1])
            self._throttle.agree(pause)
        if self._throttle.due():
            given = self._notice is not None and self._notice.given
            told = torch.tensor([given, self._throttle.wish()], dtype=torch.uint8)
            # It is looked at after the next step: nobody waits for the others.
            self._asked = dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group, async_op=True), told
        if answer and self._notice:
            self._notice.heed()
        return answer

    def leave(self) -> NoReturn:
        """End this process after `must_stop`, with exit code 90: what was saved is where the next attempt begins."""
        sys.exit(SAVED)

    def reseed(self, step: int) -> None:
        """Random numbers of torch, numpy and Python, from here on, are a function of (seed, step, part of the samples) alone.

        To be called before each step: a run that goes on from a checkpoint then draws what the undisturbed one does, and no state of
        generators has to be kept. Processes that see the same samples draw the same.
        """
        seed = mixed(mixed(self.seed, step), self.member.rank)
        _seed_host(seed)
        # What `torch.manual_seed` does, but for kinds of devices that nobody uses: for each of those it takes a traceback each time.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)


@contextmanager
def start(
    *,
    seed: int = 0,
    parallelism: Parallelism | None = None,
    device: str | None = None,
    timeout: timedelta | None = None,
    deterministic: bool = False,
    patience: float | None = None,
) -> Iterator[Training]:
    """Join the other processes of the training: under trainyard-agent, torchrun, any launcher that sets RANK, or alone.

    Within it there is a default process group (gloo, with a GPU also nccl), also for one process. An exception that has an `exit_code`
    ends the process with it, behind its traceback: 95 where no checkpoint is whole.

    Args:
        seed: all draw the same from it until the first `reseed`: weights are the same everywhere.
        parallelism: by default what the environment variable TRAINYARD_PARALLELISM says, the TrainingJob's `spec.parallelism`.
        device: "cuda" or "cpu"; by default a GPU where there is one for each process of this pod.
        timeout: of a collective; by default torch's.
        deterministic: torch's algorithms that give the same bits each time, or an error where there is none.
        patience: seconds after SIGTERM in which the step in hand has to come to its end, or the process ends as it is; by default two
            thirds of what the pod gets to end (TRAINYARD_GRACE_PERIOD_SECONDS, else 30 s). Under trainyard-agent it is the agent's matter.

    Raises:
        ValueError: a variable or parameter does not fit; the text says which.
    """
    if not 0 <= seed < SEED:
        raise ValueError(f"seed must be from 0 to {SEED - 1}, and is {seed}")
    if patience is not None and not 0 < patience <= LONGEST_GRACE_SECONDS:
        raise ValueError(
            f"patience must be a positive number of seconds up to {LONGEST_GRACE_SECONDS}, and is {patience}"
        )
    bound = patience_seconds(os.environ) if patience is None else patience
    place = Place.of(os.environ)
    chosen = parallelism or Parallelism.parse(os.environ.get("TRAINYARD_PARALLELISM"))
    chosen.data(place.world)
    where = _device(place, device)
    log()
    _seed_all(seed)
    if deterministic:
        # Read by cuBLAS when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)
    os.environ.update(flight_recorder(os.environ))
    _join(place, where, timeout)
    # The agent speaks for the ranks that it has started itself. Handlers are for the main thread alone.
    free = not place.supervised and threading.current_thread() is threading.main_thread()
    notice = Notice(bound) if free else None
    try:
        with ends():
            training = Training(place, where, chosen.mesh(place.world, where.type), seed, notice)
            with training.ending:
                yield training
    except SystemExit as error:
        # As a rule all come here together; where not, the next attempt is not to wait.
        if error.code is None or isinstance(error.code, int):
            _part(error.code or 0, where)
        raise
    except BaseException:
        # With others, it would wait for processes that are perhaps no more.
        if place.world == 1 and dist.is_initialized():
            destroy()
        raise
    else:
        destroy()
    finally:
        if notice:
            notice.close()


def _part(code: int, device: torch.device) -> None:
    """Give up the process groups before the process ends: gloo aborts one that still has them, or has it wait for ever."""

    def part() -> None:
        if device.type == "cuda":
            # A thread begins with the node's first one, on which it would take memory.
            torch.cuda.set_device(device)
        destroy()

    try:
        within(PART_SECONDS, part)
    except SilentError:
        # It waits for processes that are no more, and so would the interpreter's end.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _device(place: Place, wanted: str | None) -> torch.device:
    if wanted not in {None, "cpu", "cuda"}:
        raise ValueError(f'device must be "cuda" or "cpu", and is {wanted!r}')
    found = torch.cuda.device_count() if wanted != "cpu" else 0
    # gpu-only: the device of a local rank
    if wanted == "cuda" or found:
        if found <= place.local_rank or found < place.local_world:
            raise ValueError(
                f"there are {place.local_world} processes in this pod and {found} GPUs: set processesPerReplica to {found or 'the number of GPUs'}, "
                'or ask for device="cpu"'
            )
        device = torch.device("cuda", place.local_rank)
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def _join(place: Place, device: torch.device, timeout: timedelta | None) -> None:
    # gpu-only: nccl beside gloo
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    more: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if not place.launched:
        more["store"] = dist.HashStore()
    # Without device_id: with it, torch splits nccl's communicator for each dimension of a mesh, and several releases fail in that (#148162,
    # #159200). The device is set already.
    dist.init_process_group(backend, rank=place.rank, world_size=place.world, **more)


def log() -> None:
    """What the library says is to be seen where the program has not said how."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _seed_all(seed: int) -> None:
    _seed_host(seed)
    # Also those of the devices.
    torch.manual_seed(seed)


def _seed_host(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - programs and libraries draw from it
