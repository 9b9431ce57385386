"""The process groups and sockets that a training creates when it starts: no more than it needs."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.library.support.processes import run
from trainyard_torch import Checkpoints, process_group
from trainyard_torch.checkpoint.communicator import Communicator
from trainyard_torch.context import Training
from trainyard_torch.data import DataShard
from trainyard_torch.mesh import DIMENSIONS, JOINED, Parallelism, data_shard, size, submesh
from trainyard_torch.monitoring.monitor import Monitor
from trainyard_torch.process_info import ProcessInfo
from trainyard_torch.tracking.tracking import Tracking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainyard_torch.tracking.events import Event

RANKS = 8
FEW = 4
STABLE_SECONDS = 0.5


class Counted:
    """The groups that this process has been asked to create since, and the sockets that it has opened."""

    def __init__(self) -> None:
        self.members: list[list[int]] = []
        self._create, self._sockets = distributed_c10d._new_group_with_tag, open_sockets(stable=True)
        distributed_c10d._new_group_with_tag = self._counted

    def _counted(self, ranks: list[int] | None = None, *words: Any, **more: Any) -> Any:
        self.members.append(ranks or list(range(dist.get_world_size())))
        return self._create(ranks, *words, **more)

    @property
    def sockets(self) -> int:
        """The sockets of this process, counted before any rank has left: its peers would close theirs."""
        found = open_sockets() - self._sockets
        # By the store, which is connected already: a barrier of the group would open sockets.
        store = distributed_c10d._get_default_store()
        store.add("counted", 1)
        while store.add("counted", 0) < dist.get_world_size():
            time.sleep(0.01)
        return found


def open_sockets(*, stable: bool = False) -> int:
    """Return how many sockets are open. `stable`: once that has not changed for a while, since some of the group's start close later."""
    before, since = _open_sockets(), time.monotonic()
    while stable and time.monotonic() - since < STABLE_SECONDS:
        time.sleep(0.02)
        if (now := _open_sockets()) != before:
            before, since = now, time.monotonic()
    return before


def _open_sockets() -> int:
    # The folder itself is open while it is listed, and closed afterwards.
    links = [entry.readlink() for entry in list(Path("/proc/self/fd").iterdir()) if os.path.lexists(entry)]
    return sum(link.name.startswith("socket:") for link in links)


class Place(NamedTuple):
    """What one rank found."""

    members: list[list[int]]
    sockets: int
    data: DataShard
    coordinates: tuple[int, ...]


def groups_of_a_mesh(sizes: dict[str, int]) -> Place:
    counted = Counted()
    mesh = Parallelism(**sizes).mesh(dist.get_world_size(), "cpu")
    for name in (*DIMENSIONS, *JOINED):
        group = submesh(mesh, name).get_group()
        own = torch.ones(1)
        dist.all_reduce(own, group=group)
        assert own.item() == group.size() == size(mesh, name) == submesh(mesh, name).size(), name
        assert dist.get_rank(group) == submesh(mesh, name).get_local_rank()
    coordinates = tuple(mesh[name].get_local_rank() for name in DIMENSIONS)
    return Place(counted.members, counted.sockets, data_shard(mesh), coordinates)


PAIRS = [[0, 4], [1, 5], [2, 6], [3, 7]]
NEIGHBOURS = [[0, 1], [2, 3], [4, 5], [6, 7]]
QUADS = [[0, 1, 2, 3], [4, 5, 6, 7]]
EVENS = [[0, 2, 4, 6], [1, 3, 5, 7]]
SECONDS = [[0, 2], [1, 3], [4, 6], [5, 7]]
ALONE = [[0]]


@pytest.mark.parametrize(
    ("sizes", "members", "connections"),
    [
        ({}, ALONE, 0),
        ({"replicate": 2}, [*ALONE, *PAIRS, *QUADS], 1 + 3),
        ({"pipeline": 2, "context": 2}, [*PAIRS, *ALONE, *SECONDS, *NEIGHBOURS, *QUADS], 1 + 1 + 1 + 3),
        ({"tensor": 2, "replicate": 2}, [*ALONE, *PAIRS, *SECONDS, *NEIGHBOURS, *EVENS], 1 + 1 + 1 + 3),
    ],
)
def test_dimensions_of_one_process_need_no_group(
    tmp_path: Path, sizes: dict[str, int], members: list[list[int]], connections: int
) -> None:
    shape = Parallelism(**sizes).shape(RANKS)
    found = run(RANKS, tmp_path, groups_of_a_mesh, sizes)
    assert found[0].members == members
    # gloo listens once for each group of this process.
    assert found[0].sockets == connections + sum(0 in each for each in members)
    for rank, here in enumerate(found):
        assert here.coordinates == tuple(int(at) for at in torch.unravel_index(torch.tensor(rank), shape))
        _, replica, part, _, _ = here.coordinates
        assert here.data == DataShard(replica * shape[2] + part, shape[1] * shape[2])


class Silent:
    """A tracking backend that takes everything."""

    name = "silence"

    def write(self, events: Sequence[Event], /) -> None:
        pass

    def register(self, *_: object) -> str:
        return ""

    def close(self) -> None:
        pass


def groups_of_a_training(folder: Path, *, supervised: bool) -> tuple[list[list[int]], int, int]:
    process, counted = ProcessInfo.of(os.environ), Counted()
    if supervised:
        process = replace(process, supervised=True)
        # The rank ends with the test.
        agent = SimpleNamespace(must_stop=lambda _: False)
        pytest.MonkeyPatch().setattr("trainyard_torch.context.agent", lambda: agent)
    mesh = Parallelism().mesh(FEW, "cpu")
    training = Training(process, torch.device("cpu"), mesh, 0, None)
    assert not any(training.must_stop(step) for step in range(3))
    first = len(counted.members)
    checkpoints = [Checkpoints(str(folder / name), mesh=mesh) for name in ("first", "second")]
    with Tracking(Silent(), log_every=1) as tracking:
        tracking.start(Monitor())
    assert checkpoints[0]._communicator.group is checkpoints[1]._communicator.group is process_group.control_group()
    assert checkpoints[0]._background.group is not checkpoints[1]._background.group
    return counted.members, counted.sockets, first


@pytest.mark.parametrize(("supervised", "before_checkpoints"), [(False, 2), (True, 1)])
def test_control_group_is_shared(tmp_path: Path, *, supervised: bool, before_checkpoints: int) -> None:
    everyone = list(range(FEW))
    made, sockets, first = run(FEW, tmp_path, partial(groups_of_a_training, supervised=supervised), tmp_path)[3]
    # One of this process alone, the control group, and one for the thread of each folder of checkpoints.
    assert made == [[3], everyone, everyone, everyone]
    assert sockets == 1 + 3 * FEW
    assert first == before_checkpoints


def waited_longer() -> list[int]:
    before = process_group.control_group()
    process_group.set_timeout(timedelta(seconds=0.5))
    communicator = Communicator(60)
    assert communicator.group is before
    if dist.get_rank() == 0:
        time.sleep(1.5)
    return communicator.gather(dist.get_rank())


def test_control_group_waits_as_long_as_checkpoints_need(tmp_path: Path) -> None:
    assert run(2, tmp_path, waited_longer) == [[0, 1], [0, 1]]


def two_lives(folder: Path) -> list[int]:
    ended = process_group.control_group()
    process_group.destroy()
    with pytest.raises(RuntimeError, match="there is no process group: call init_process_group first"):
        process_group.control_group()
    dist.init_process_group("gloo", init_method=f"file://{folder}/again", rank=int(os.environ["RANK"]), world_size=2)
    assert process_group.control_group() is not ended
    borrowed = Communicator(borrow=True)
    borrowed.close()
    Communicator().close()
    found = borrowed.gather(dist.get_rank()) + Communicator().gather(dist.get_rank())
    threaded = Communicator(threaded=True)
    assert threaded.group is not process_group.control_group()
    threaded.close()
    assert threaded.group not in distributed_c10d._world.pg_map
    process_group.destroy()
    return found


def test_control_group_ends_with_the_default_group(tmp_path: Path) -> None:
    assert run(2, tmp_path, two_lives, tmp_path) == [[0, 1, 0, 1]] * 2
