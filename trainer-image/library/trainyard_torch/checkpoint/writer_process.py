"""A process that writes the files of checkpoints, so that the training keeps Python's lock for itself.

It maps the memory that holds the copy of the state, so no tensor is sent. It ends with the training's process, whatever ends that.
Both are one program of one user: what they send each other is trusted.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from trainyard_torch.checkpoint.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trainyard_torch.checkpoint.staging import StagingBuffer

T = TypeVar("T")
LOOK_SECONDS = 0.2
"""How often it is asked whether the checkpoint may still continue."""
END_SECONDS = 5.0
"""How long the exit code of a process is waited for that has closed its connection."""
OWN_VARIABLES = ("TRAINYARD_", "TORCHELASTIC_")
OWN_NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
)
"""What makes a process a rank of a training. The one that writes is none."""
START = "import sys; sys.path[:] = sys.argv[5:]; from trainyard_torch.checkpoint import writer_process; writer_process.main()"
"""Not `python -m`: it would put the working directory before the training's own path."""


_mapped: list[mmap.mmap] = []
"""In the process that writes: the memory of the staging buffer, if it has any."""


class Run(Protocol):
    """Calls a function of a module, here or in another process. Its arguments and its result can be pickled."""

    def __call__(self, function: Callable[..., T], *arguments: object) -> T:
        """Return the function's result, or raise its exception."""


def here(function: Callable[..., T], *arguments: object) -> T:
    """Call the function in this process."""
    return function(*arguments)


class WriterProcess:
    """The process of one staging buffer. It starts with the first call, and again after it has ended.

    Args:
        staging: the memory of the state's copies, which must be shared.
    """

    def __init__(self, staging: StagingBuffer) -> None:
        self._staging = staging
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        self._allocation = 0

    def run(self, check: Callable[[], object], function: Callable[..., T], *arguments: object) -> T:
        """Return the result of a function that the process calls, or raise its exception.

        Args:
            check: is called regularly. If it raises, the process is killed, and the exception is raised here.
            function: a function of a module.
            arguments: tensors of the staging buffer are not sent: the process reads them where they are.

        Raises:
            StoreError: the process could not start, or ended.
        """
        try:
            connection = self._connected()
            connection.send_bytes(_pickled((function, arguments), self._staging))
            while not connection.poll(LOOK_SECONDS):
                check()
            error, result = connection.recv()
        except (EOFError, OSError) as wrong:
            raise StoreError(f"the process that writes checkpoints ended{self._exit_code()}") from wrong
        except BaseException:
            self.close()
            raise
        if error is not None:
            raise error
        found: T = result
        return found

    def close(self) -> None:
        """Kill the process. Does not wait for its end: a store that hangs may keep it."""
        if self._connection:
            self._connection.close()
        if self._process:
            self._process.kill()
            threading.Thread(target=self._process.wait, name="reaper", daemon=True).start()
        self._process = self._connection = None

    def _connected(self) -> Connection[Any, Any]:
        if (
            self._connection
            and self._process
            and self._process.poll() is None
            and self._allocation == self._staging.allocations
        ):
            return self._connection
        self.close()
        self._connection, other = Pipe()
        self._allocation = self._staging.allocations
        handles = (other.fileno(), self._staging.file)
        numbers = (*handles, self._staging.size, os.getpid())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, *map(str, numbers), *sys.path],
                pass_fds=[each for each in handles if each >= 0],
                stdin=subprocess.DEVNULL,
                env=_environment(os.environ),
            )
        finally:
            other.close()
        return self._connection

    def _exit_code(self) -> str:
        """Return what is known of the end of the process, and forget the process."""
        process = self._process
        if process is None:
            return ": it could not be started"
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        code = process.returncode
        self.close()
        if code is None:
            return ": it does not answer any more"
        return f" by signal {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that is no rank, and uses no GPU and one processor."""
    kept = {
        name: value for name, value in environ.items() if not name.startswith(OWN_VARIABLES) and name not in OWN_NAMES
    }
    return {**kept, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def _pickled(value: object, staging: StagingBuffer) -> bytes:
    """Return the pickle of a value, with the places of the tensors that lie in the buffer."""

    def reduced(tensor: torch.Tensor) -> Any:
        place = staging.place_of(tensor)
        if place is None:
            return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        return _tensor, (place, tensor.dtype, tuple(tensor.shape), tensor.stride())

    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL)
    # Looked up by the type alone, so that other values cost no call.
    pickler.dispatch_table = {**copyreg.dispatch_table, torch.Tensor: reduced}
    pickler.dump(value)
    return stream.getvalue()


def _tensor(place: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor of the mapped memory, in the process that writes."""
    # Each has a storage of its own, as in the training's process: torch writes whole storages.
    size = dtype.itemsize * (1 + sum((extent - 1) * step for extent, step in zip(shape, strides, strict=True)))
    flat = torch.frombuffer(_mapped[0], dtype=torch.uint8, count=size, offset=place).view(dtype)
    return flat.as_strided(shape, strides)


def main() -> None:
    """Serve the process that has started this one: read a call, and answer with its exception or result."""
    number, file, size, owner = map(int, sys.argv[1:5])
    connection: Connection[Any, Any] = Connection(number)
    # Sent to all processes of a rank: the checkpoint at the end of an evicted training is still to be written.
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(number, owner), daemon=True).start()
    # Not at the top: `streams` needs this module.
    from trainyard_torch.checkpoint.streams import patch_torch_checkpoint  # noqa: PLC0415

    patch_torch_checkpoint()
    if size:
        _mapped.append(mmap.mmap(file, size))
    with suppress(EOFError, OSError):
        while True:
            _answer(connection)


def _end_with(connection: int, owner: int) -> None:
    """End this process when the one that started it has ended, at once or, where forks of that hold the connection, after a second."""
    watch = select.poll()
    watch.register(connection, 0)
    while os.getppid() == owner and not watch.poll(1000):
        pass
    os._exit(0)


def _answer(connection: Connection[Any, Any]) -> None:
    content = connection.recv_bytes()
    try:
        function, arguments = pickle.loads(content)  # noqa: S301 - from the process that started this one
        answer = pickle.dumps((None, function(*arguments)))
    except Exception as error:  # noqa: BLE001 - it is raised in the other process
        answer = _pickled_error(error)
    connection.send_bytes(answer)


def _pickled_error(error: Exception) -> bytes:
    try:
        content = pickle.dumps((error, None))
        pickle.loads(content)  # noqa: S301 - our own: some exceptions cannot be made from their pickle
    except Exception:  # noqa: BLE001 - of a class of somebody else
        return pickle.dumps((StoreError(f"{type(error).__name__}: {error}"), None))
    return content
