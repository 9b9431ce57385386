"""Ranks for a test: processes with gloo on this machine. What they run is a function of a module, and so are its arguments picklable."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess
    from pathlib import Path

PATIENCE = 120.0
HERE = __name__


TRIES = 3
"""On a busy machine gloo now and then fails to connect all with all. Nothing of the test has run then."""


class RankError(AssertionError):
    """A rank raised, was killed, or has not ended in time; the text is what it said."""


class NotMetError(RankError):
    """The group could not be made."""


def run(world_size: int, folder: Path, act: Callable[..., Any], *words: Any, patience: float = PATIENCE) -> list[Any]:
    """What `act(*words)` returned in each of `world` ranks of one process group, by rank.

    Args:
        world: 1 has a process group too.
        folder: an empty one, or one that earlier runs of the test have used.
        act: a function of a module. It finds the group made, and RANK and the like set.
        words: its arguments.
        patience: seconds for all of it.

    Raises:
        RankError: with the words of the first that failed.
    """
    for _ in range(TRIES - 1):
        with suppress(NotMetError):
            return _run(world_size, folder, act, words, patience)
    return _run(world_size, folder, act, words, patience)


def _run(world_size: int, folder: Path, act: Callable[..., Any], words: tuple[Any, ...], patience: float) -> list[Any]:
    context = multiprocessing.get_context("forkserver")
    # Once for all tests: to import torch, and what a rank needs of it, takes seconds.
    context.set_forkserver_preload(["torch.distributed.checkpoint", "torch._dynamo", "pytest", "s3fs", HERE])
    store = folder / f"store-{time.monotonic_ns()}"
    pipes: list[Connection] = []
    ranks: list[BaseProcess] = []
    try:
        for rank in range(world_size):
            here, there = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank, args=(rank, world_size, str(store), there, act, words, patience), daemon=True
            )
            process.start()
            there.close()
            pipes.append(here)
            ranks.append(process)
        return _answers(pipes, time.monotonic() + patience)
    finally:
        for rank_process in ranks:
            rank_process.kill()
            rank_process.join()


def _answers(pipes: list[Connection], until: float) -> list[Any]:
    answers: dict[int, Any] = {}
    while len(answers) < len(pipes):
        open_ones = [pipe for rank, pipe in enumerate(pipes) if rank not in answers]
        ready = wait(open_ones, max(0.0, until - time.monotonic()))
        if not ready:
            silent = [rank for rank in range(len(pipes)) if rank not in answers]
            raise RankError(f"ranks {silent} have not ended in time")
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]  # no sockets here
            try:
                failed, answers[rank] = pipes[rank].recv()
            except EOFError:
                raise RankError(f"rank {rank} has ended without a word") from None
            if failed:
                # On a busy machine gloo cannot connect all with all now and then, in later groups too.
                met = "act(*words)" in answers[rank] and "connectFullMesh failed" not in answers[rank]
                kind = RankError if met else NotMetError
                raise kind(f"rank {rank}:\n{answers[rank]}")
    return [answers[rank] for rank in range(len(pipes))]


def _rank(
    rank: int,
    world_size: int,
    store: str,
    out: Connection,
    act: Callable[..., Any],
    words: tuple[Any, ...],
    patience: float,
) -> None:
    # Who is about to be given up says where it stands.
    faulthandler.dump_traceback_later(0.9 * patience)
    import torch  # noqa: PLC0415 - where pytest collects, there may be none
    import torch.distributed as dist  # noqa: PLC0415

    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo",
    )  # fmt: skip
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
        answer = (False, act(*words))
    except BaseException:  # noqa: BLE001 - it is reported
        answer = (True, traceback.format_exc())
    with suppress(BrokenPipeError):
        out.send(answer)
    # Without destroy_process_group and exit handlers: a rank that lost its peers would wait in them.
    os._exit(0)
