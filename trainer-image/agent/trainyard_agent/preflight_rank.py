"""One rank of the comparison of a group's nodes before training: a matrix product, exchanges with other workers, a sum over all ranks.

It runs in the Python of the job, and needs torch there. What cannot be measured never keeps a job from training: then the rank says so,
and exits with 0. Each rank writes what it has measured into a store of rank 0, which compares, and all learn the verdict.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainyard_agent.exit_cause import PEER_LOST_CODE
from trainyard_agent.preflight import PORT_DISTANCE, SECONDS_VARIABLE
from trainyard_agent.preflight_verdict import Measured, Verdict, by_index, rounds, verdict

if TYPE_CHECKING:
    import torch

UNFIT_NODE_CODE = 94
"""The operator replaces the worker, and keeps its new pod away from this node."""
JOIN_TIMEOUT = timedelta(minutes=30)
"""How long ranks wait for those of workers whose pods start later. It is no part of the comparison, as training would wait as well."""
ANSWER_TIMEOUT = timedelta(seconds=10)
"""How long one exchange may take. After that, the other rank does not answer."""
GROUP_TIMEOUT = timedelta(seconds=60)
"""How long ranks that are all here may take to form a group. A rank that cannot take part leaves the others without a word."""
VERDICT_TIMEOUT = timedelta(minutes=3)
"""How long rank 0 waits for what all ranks have measured. Ranks that meet a slow one are late."""
SLOW_EXCHANGE_SECONDS = 0.25
"""An exchange that takes longer is not repeated: one is enough to see it."""
READ_AGAIN_SECONDS = 0.02
RINGS = 3
"""Sums over all ranks, of which the last counts."""


class Extent(NamedTuple):
    """How much is measured."""

    rounds: int
    """Other workers with which each one exchanges data, at most."""
    product_seconds: float
    """For how long a rank computes products."""
    exchanges: int
    """Of each pair."""


EXTENTS = {"quick": Extent(7, 1.0, 4), "full": Extent(63, 4.0, 4)}


class Device(NamedTuple):
    """What a rank computes on."""

    device: torch.device
    backend: str
    rows: int
    """Of the square matrices that are multiplied."""
    message_bytes: int
    """Of one exchange, in each direction."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is an accelerator."""
        return self.backend != "gloo"


def run(mode: str) -> None:
    """Take part in the comparison, and exit: with 94 for the worker that is too slow, with 92 for the others then, else with 0."""
    try:
        code = main(mode)
    except SlowNodeError:
        traceback.print_exc()
        code = UNFIT_NODE_CODE
    sys.stderr.flush()
    # Without the end of the process groups: it waits for all ranks, one of which may be lost.
    os._exit(code)


def main(mode: str, environment: Mapping[str, str] = os.environ) -> int:
    """Take part in the comparison. Returns the exit code; raises SlowNodeError in the worker that is too slow."""
    try:
        import torch  # noqa: F401, PLC0415 - of the job's image, if it is there
    except ImportError:
        return _skipped("this Python has no torch")
    try:
        return _compare(EXTENTS[mode], environment)
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        return _skipped(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason'}")


def _compare(extent: Extent, environment: Mapping[str, str]) -> int:
    import torch.distributed as dist  # noqa: PLC0415

    rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    processes, index = int(environment["LOCAL_WORLD_SIZE"]), int(environment["TRAINYARD_REPLICA_INDEX"])
    port, host = int(environment["MASTER_PORT"]) + PORT_DISTANCE, environment["MASTER_ADDR"]
    # Whether a build has distributed at all is seen here, by its RuntimeError.
    store = dist.TCPStore(host, port, world, rank == 0, JOIN_TIMEOUT, wait_for_workers=False)
    device = _device(int(environment["LOCAL_RANK"]))
    _await_ranks(store, "joined", world, JOIN_TIMEOUT)
    dist.init_process_group(device.backend, store=store, rank=rank, world_size=world, timeout=GROUP_TIMEOUT)
    dist.barrier()
    began = time.monotonic()
    found = _measured_twice(extent, device, processes, store, index)
    seconds = time.monotonic() - began
    if found is None and rank == 0:
        _log(f"no worker is far slower than the others workers={world // processes} seconds={seconds:.1f}")
    if path := environment.get(SECONDS_VARIABLE):
        with suppress(OSError):
            Path(path).write_text(f"{seconds:.3f}")
    if found is None:
        return 0
    if found.worker != index:
        _log(f"training does not start: {found.reason}")
        return PEER_LOST_CODE
    raise SlowNodeError(f"{found.reason}; the worker moves to another node")


class SlowNodeError(Exception):
    """This worker has to leave its node."""

    # The message of the worker then has the name alone.
    __module__ = "builtins"


def _measured_twice(extent: Extent, device: Device, processes: int, store: Any, index: int) -> Verdict | None:
    """Return the verdict that two measurements share: what is slow for a moment is no fault."""
    first = _agree(_measure(extent, device, processes), index, store, "first")
    if first is None:
        return None
    second = _agree(_measure(extent, device, processes), index, store, "second")
    return second if second is not None and second.worker == first.worker else None


def _measure(extent: Extent, device: Device, processes: int) -> Measured:
    """Return what this rank measures. All ranks call it at the same time. Workers are numbered by their place in the order of ranks."""
    import torch.distributed as dist  # noqa: PLC0415

    rank, world = dist.get_rank(), dist.get_world_size()
    worker, workers, local = rank // processes, world // processes, rank % processes
    product = _product_seconds(device, extent.product_seconds)
    seconds: dict[int, float] = {}
    for number, pairs in enumerate(rounds(workers, extent.rounds)):
        own = next((pair for pair in pairs if worker in pair), None)
        if own is None:
            continue
        other = own.second if own.first == worker else own.first
        took = _exchange_seconds(device, other * processes + local, extent.exchanges)
        if took is None:
            return Measured(worker, product, seconds, device.is_gpu, other, number)
        seconds[other] = took
    ring = _ring_seconds(device) if workers > 1 else None
    if ring is not None and rank == 0:
        _log(f"sum over all ranks bytes={device.message_bytes} ms={1000 * ring:.3g}")
    return Measured(worker, product, seconds, device.is_gpu)


def _agree(mine: Measured, index: int, store: Any, name: str) -> Verdict | None:
    """Return the verdict on what all ranks have measured, which rank 0 finds. It has the index of a worker. `index`: that of this one."""
    import torch.distributed as dist  # noqa: PLC0415

    rank, world = dist.get_rank(), dist.get_world_size()
    store.set(f"{name}/{rank}", json.dumps([index, *mine]))
    if rank == 0:
        keys = [f"{name}/{each}" for each in range(world)]
        store.wait(keys, VERDICT_TIMEOUT)
        found = verdict(by_index([_read(store.get(key)) for key in keys]))
        store.set(name, json.dumps(found))
    store.wait([name], VERDICT_TIMEOUT + ANSWER_TIMEOUT)
    answer = json.loads(store.get(name))
    # The store ends with rank 0.
    _await_ranks(store, f"{name}/read", world if rank == 0 else 0, ANSWER_TIMEOUT)
    return None if answer is None else Verdict(*answer)


def _await_ranks(store: Any, key: str, ranks: int, timeout: timedelta) -> None:
    """Count this rank as one that is here, and wait until so many are, or the time is over."""
    end, number = time.monotonic() + timeout.total_seconds(), store.add(key, 1)
    while number < ranks and time.monotonic() < end:
        time.sleep(READ_AGAIN_SECONDS)
        number = store.add(key, 0)


def _read(text: bytes) -> tuple[int, Measured]:
    """Return the index of a worker, and what its rank has measured."""
    index, worker, product, seconds, *rest = json.loads(text)
    return index, Measured(worker, product, {int(other): took for other, took in seconds.items()}, *rest)


def _device(local_rank: int) -> Device:
    import torch  # noqa: PLC0415

    if torch.cuda.is_available() and local_rank < torch.cuda.device_count():
        torch.cuda.set_device(local_rank)
        return Device(torch.device("cuda", local_rank), "nccl", 4096, 64 * 1024**2)
    return Device(torch.device("cpu"), "gloo", 384, 4 * 1024**2)


def _product_seconds(device: Device, seconds: float) -> float:
    """Return how long a matrix product takes, on average over so many seconds: a processor that is held back runs fast now and then."""
    import torch  # noqa: PLC0415

    kind = torch.bfloat16 if device.is_gpu else torch.float32
    matrix = torch.randn(device.rows, device.rows, device=device.device, dtype=kind)
    # The first one loads kernels.
    torch.mm(matrix, matrix)
    _finish(device)
    began, number = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        for _ in range(10):
            torch.mm(matrix, matrix)
        _finish(device)
        number += 10
    return (time.monotonic() - began) / number


def _exchange_seconds(device: Device, other: int, exchanges: int) -> float | None:
    """Return how long it takes to send data to another rank and to get as much from it; None where it does not answer."""
    import torch  # noqa: PLC0415

    ours = torch.zeros(device.message_bytes, dtype=torch.uint8, device=device.device)
    theirs, mark = torch.empty_like(ours), torch.zeros(1, dtype=torch.uint8, device=device.device)
    try:
        # The first one waits for the other rank, and makes the connection.
        _exchange(mark, torch.empty_like(mark), other)
        _finish(device)
        began = time.monotonic()
        _exchange(ours, theirs, other)
        _finish(device)
        first = time.monotonic() - began
        # Both sides have to make as many.
        mark.fill_(first > SLOW_EXCHANGE_SECONDS)
        slow = torch.empty_like(mark)
        _exchange(mark, slow, other)
        _finish(device)
        if mark.item() or slow.item():
            return first
        began = time.monotonic()
        for _ in range(exchanges):
            _exchange(ours, theirs, other)
        _finish(device)
    except RuntimeError as error:
        _log(f"rank {other} does not answer: {str(error).splitlines()[0]}")
        return None
    return (time.monotonic() - began) / exchanges


def _ring_seconds(device: Device) -> float | None:
    """Return how long a sum over all ranks takes; None where one does not take part, as it has lost another."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    data, took = torch.zeros(device.message_bytes // 4, device=device.device), 0.0
    try:
        for _ in range(RINGS):
            began = time.monotonic()
            work = dist.all_reduce(data, async_op=True)
            work.wait(ANSWER_TIMEOUT)
            _finish(device)
            took = time.monotonic() - began
    except RuntimeError:
        return None
    return took


def _exchange(ours: torch.Tensor, theirs: torch.Tensor, other: int) -> None:
    import torch.distributed as dist  # noqa: PLC0415

    both = [dist.P2POp(dist.isend, ours, other), dist.P2POp(dist.irecv, theirs, other)]
    for each in dist.batch_isend_irecv(both):
        each.wait(ANSWER_TIMEOUT)


def _finish(device: Device) -> None:
    import torch  # noqa: PLC0415

    if device.is_gpu:
        torch.cuda.synchronize()


def _skipped(why: str) -> int:
    _log(f"nodes were not compared: {why}")
    return 0


def _log(text: str) -> None:
    sys.stderr.write(f"trainyard-agent: preflight: {text}\n")
