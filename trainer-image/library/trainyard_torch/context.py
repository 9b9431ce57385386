"""Set up and tear down a training process: `with start() as training:`."""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from trainyard_torch.agent import agent
from trainyard_torch.checkpoint.timeouts import NoResponseError, run_with_timeout
from trainyard_torch.data.sample_order import mixed
from trainyard_torch.determinism import seed_distributed_tensors, use_deterministic_algorithms
from trainyard_torch.device import VisibleGpus, device_type
from trainyard_torch.errors import exit_with_code
from trainyard_torch.exit_after_exception import exit_soon_after
from trainyard_torch.mesh import Parallelism, data_shard
from trainyard_torch.monitoring.compile_phase import CompilePhase
from trainyard_torch.monitoring.flight_recorder import flight_recorder
from trainyard_torch.process_group import control_group, default_timeout, destroy, set_timeout
from trainyard_torch.process_info import ProcessInfo
from trainyard_torch.sigterm import MAX_GRACE_PERIOD_SECONDS, SigtermHandler, default_stop_timeout_seconds
from trainyard_torch.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from torch.distributed.device_mesh import DeviceMesh

    from trainyard_torch.data.batches import DataShard

STOPPED_EXIT_CODE = 90
"""The exit code of a training that saved its state and stopped on request. The operator does not count it as a failure."""
SEED = 2**64
DESTROY_TIMEOUT_SECONDS = 10.0
"""The timeout for releasing process groups when a process exits with its own exit code."""
DESTROY_AFTER_TRAINING_SECONDS = 60.0
"""The timeout for releasing them when the training is done and the program goes on."""

logger = logging.getLogger(__name__)


class Training:
    """One process of a training. Made by `start`.

    Attributes:
        process: the rank and world size of this process, in the group and within the pod.
        device: the device for its tensors.
        mesh: the mesh of all processes (`Parallelism.mesh`).
        seed: the seed of the training.
        exit_stack: context managers to close when training ends. They receive the exception, if any.
    """

    def __init__(
        self, process: ProcessInfo, device: torch.device, mesh: DeviceMesh, seed: int, sigterm: SigtermHandler | None
    ) -> None:
        self.process, self.device, self.mesh, self.seed = process, device, mesh, seed
        self.exit_stack = ExitStack()
        self._sigterm, self._agent = sigterm, agent()
        # A lookup in the mesh takes a tenth of a millisecond, and each step needs it.
        self._data_shard, self._tensor_mesh = data_shard(mesh), mesh["tensor"]
        if self._votes:
            # Now, so that no step waits for it.
            control_group()
        self._asked: tuple[dist.Work, torch.Tensor] | None = None
        self._throttle = Throttle()
        self._compile_phase = CompilePhase(self._agent)
        self._compile_phase.register()
        self.exit_stack.callback(self._compile_phase.close)

    @property
    def data_shard(self) -> DataShard:
        """The data shard of this process, for `Batches.step`."""
        return self._data_shard

    @property
    def is_rank0(self) -> bool:
        """Whether this is rank 0, which alone prints and exports."""
        return self.process.rank == 0

    def progress(
        self,
        step: int | None = None,
        *,
        phase: str = "train",
        total: int | None = None,
        loss: float | None = None,
        compute_seconds: float | None = None,
    ) -> None:
        """Report progress to the agent, as `trainyard_agent.progress` does. Without an agent, do nothing."""
        if self._agent:
            self._agent.progress(step, phase=phase, total=total, loss=loss, compute_seconds=compute_seconds)

    def must_stop(self, step: int) -> bool:
        """Return whether all processes must save and `exit` after this step: after an eviction, a drain, a suspension, or SIGTERM to one process.

        Call it on all processes after each step, with the same step number. All get the same answer. Without an agent, several
        processes vote. Their answer is late by at most a tenth of a second, or by one step if steps are longer.
        """
        if self._compile_phase.is_pending:
            self._compile_phase.register()
        if self.process.supervised and self._agent:
            return bool(self._agent.must_stop(step))
        if not self._votes:
            return self._acknowledged(self._received)
        answer = False
        if self._asked:
            (work, votes), self._asked = self._asked, None
            work.wait()
            answer, pause = bool(votes[0]), int(votes[1])
            self._throttle.agree(pause)
        if self._throttle.due():
            votes = torch.tensor([self._received, self._throttle.proposal()], dtype=torch.uint8)
            # The result is read after the next step, so that no process blocks.
            self._asked = dist.all_reduce(votes, dist.ReduceOp.MAX, group=control_group(), async_op=True), votes
        return self._acknowledged(answer)

    @property
    def _votes(self) -> bool:
        """Whether the processes vote: not one process alone, and not below the agent, which decides for all."""
        return self.process.world_size > 1 and not (self.process.supervised and self._agent)

    @property
    def _received(self) -> bool:
        return self._sigterm is not None and self._sigterm.received

    def _acknowledged(self, answer: bool) -> bool:  # noqa: FBT001 - the only argument
        if answer and self._sigterm:
            self._sigterm.acknowledge()
        return answer

    def exit(self) -> NoReturn:
        """Exit with code 90, after `must_stop` returned True and the state was saved. The next attempt resumes from that checkpoint."""
        sys.exit(STOPPED_EXIT_CODE)

    def reseed(self, step: int) -> None:
        """Seed the random generators of torch, numpy and Python by (seed, step, data shard).

        Call it before each step. A run that resumes from a checkpoint then draws the same numbers as an undisturbed
        run, without stored generator states. Processes that see the same samples draw the same numbers.
        """
        seed = mixed(mixed(self.seed, step), self.data_shard.rank)
        _seed_host(seed)
        # Same as `torch.manual_seed` without unused device types: each of those costs a traceback per call.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed_all(seed)
            seed_distributed_tensors(seed, self._tensor_mesh)


@contextmanager
def start(
    *,
    seed: int = 0,
    parallelism: Parallelism | None = None,
    device: str | None = None,
    timeout: timedelta | None = None,
    deterministic: bool = False,
    stop_timeout_seconds: float | None = None,
) -> Iterator[Training]:
    """Join the other processes of the training: under trainyard-agent, torchrun, any launcher that sets RANK, or alone.

    Inside, a default process group exists (gloo, and nccl with a GPU), also for one process. An exception with an `exit_code` ends the process
    with that code after printing the traceback: 95 if no checkpoint is usable, 94 if torch sees fewer GPUs than the container requested. On
    a GPU, a process that any other exception ends exits right after the traceback (`exit_after_exception`).

    Args:
        seed: the seed of all processes until the first `reseed`: weights are the same on all.
        parallelism: by default the environment variable TRAINYARD_PARALLELISM, which holds the TrainingJob's `spec.parallelism`.
        device: "cuda" or "cpu". By default a GPU if the pod has one for each process, and a CPU only if the container requested no GPU.
        timeout: the timeout of collectives. By default torch's; below the agent, longer than all that its hang detection allows.
        deterministic: use deterministic algorithms of torch, cuDNN, cuBLAS and NCCL, and raise an error if torch has none.
        stop_timeout_seconds: seconds after SIGTERM within which the current step must finish; otherwise the process is terminated. By default
            two thirds of the pod's grace period (TRAINYARD_GRACE_PERIOD_SECONDS, else 30 s). Under trainyard-agent, the agent decides.

    Raises:
        ValueError: a variable or argument is invalid. The message names it.
    """
    if not 0 <= seed < SEED:
        raise ValueError(f"seed must be from 0 to {SEED - 1}, got {seed}")
    stop_seconds = _stop_seconds(stop_timeout_seconds)
    process = ProcessInfo.of(os.environ)
    chosen = parallelism or Parallelism.parse(os.environ.get("TRAINYARD_PARALLELISM"))
    chosen.data(process.world_size)
    with exit_with_code():
        where = _device(process, device)
    configure_logging()
    _seed_all(seed)
    if deterministic:
        use_deterministic_algorithms()
    os.environ.update(flight_recorder(os.environ, torch.__version__))
    given = timeout or default_timeout(os.environ)
    _join(process, where, given)
    # The agent receives signals for the ranks that it has started. Only the main thread may set handlers.
    free = not process.supervised and threading.current_thread() is threading.main_thread()
    sigterm = SigtermHandler(stop_seconds) if free else None
    try:
        with exit_with_code():
            training = Training(process, where, chosen.mesh(process.world_size, where.type), seed, sigterm)
            if given is not None:
                set_timeout(given)
            with training.exit_stack:
                yield training
    except SystemExit as error:
        # Usually all processes get here together. Otherwise, the next attempt must not wait for the slowest.
        if error.code is None or isinstance(error.code, int):
            _destroy_groups(error.code or 0, where)
        raise
    except BaseException as error:
        _release_after(error, process, where)
        raise
    else:
        _destroy_after_training(where)
    finally:
        if sigterm:
            sigterm.close()


def _stop_seconds(given: float | None) -> float:
    if given is None:
        return default_stop_timeout_seconds(os.environ)
    if not 0 < given <= MAX_GRACE_PERIOD_SECONDS:
        raise ValueError(
            f"stop_timeout_seconds must be a positive number of seconds up to {MAX_GRACE_PERIOD_SECONDS}, not {given}"
        )
    return given


def _destroy_groups(code: int, device: torch.device) -> None:
    """Release the process groups before the process exits: gloo aborts a process that still has them, or blocks it for ever."""
    try:
        run_with_timeout(DESTROY_TIMEOUT_SECONDS, lambda: _destroy_on(device))
    except NoResponseError:
        # It waits for processes that have exited, and would block the interpreter's exit.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _release_after(error: BaseException, process: ProcessInfo, device: torch.device) -> None:
    """Release what an exception leaves behind, and have the process exit soon if the exception ends it."""
    if device.type == "cuda" and isinstance(error, Exception):
        # gpu-only: the end of a process by an exception
        exit_soon_after(error)
    # With other processes, it would wait for processes that may have exited.
    if process.world_size == 1 and dist.is_initialized():
        with suppress(NoResponseError):
            run_with_timeout(DESTROY_TIMEOUT_SECONDS, lambda: _destroy_on(device))


def _destroy_after_training(device: torch.device) -> None:
    """Release the process groups of a training that is done. The program goes on, also if a lost rank keeps them from being released."""
    try:
        run_with_timeout(DESTROY_AFTER_TRAINING_SECONDS, lambda: _destroy_on(device))
    except NoResponseError:
        logger.warning(
            "the process groups were not released within %.0f seconds; training is done, and the program goes on",
            DESTROY_AFTER_TRAINING_SECONDS,
        )


def _destroy_on(device: torch.device) -> None:
    if device.type == "cuda":
        # A new thread uses the node's first GPU, and would allocate memory there.
        torch.cuda.set_device(device)
    destroy()


def _device(process: ProcessInfo, wanted: str | None) -> torch.device:
    if wanted not in {None, "cpu", "cuda"}:
        raise ValueError(f'device must be "cuda" or "cpu", got {wanted!r}')
    # gpu-only: the device of a local rank
    if device_type(process, wanted, os.environ, _visible_gpus(process, wanted)) == "cuda":
        device = torch.device("cuda", process.local_rank)
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def _visible_gpus(process: ProcessInfo, wanted: str | None) -> VisibleGpus:
    count = torch.cuda.device_count() if wanted != "cpu" else 0
    supported = torch.version.cuda is not None or torch.version.hip is not None
    # CUDA has no other sign of a slice than the device's name. It is looked up only if devices are missing.
    is_mig = 0 < count < process.local_world_size and " MIG " in torch.cuda.get_device_name(0)
    return VisibleGpus(count, supported, is_mig)


def _join(process: ProcessInfo, device: torch.device, timeout: timedelta | None) -> None:
    # gpu-only: nccl in addition to gloo
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    more: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    if not process.launched:
        more["store"] = dist.HashStore()
    # Without device_id: with it, torch splits nccl's communicator for each dimension of a mesh, which fails in several releases (#148162,
    # #159200). The device is set already.
    dist.init_process_group(backend, rank=process.rank, world_size=process.world_size, **more)


def configure_logging() -> None:
    """Configure logging so that the library's messages are visible, unless the program has configured logging itself."""
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _seed_all(seed: int) -> None:
    _seed_host(seed)
    # Devices have generators, too.
    torch.manual_seed(seed)


def _seed_host(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - programs and libraries draw from it
