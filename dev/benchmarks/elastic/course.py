"""Resize a job several times, and measure the cost of each change."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dev.benchmarks import recovery
from dev.benchmarks.elastic.results import Change
from dev.benchmarks.elastic.systems import LARGEST, Elastic
from dev.benchmarks.recovery.goodput import earned
from dev.benchmarks.recovery.milestones import DiaryReader, Group
from dev.benchmarks.recovery.systems import Job
from dev.benchmarks.recovery.trial import end_all
from dev.benchmarks.scale.api import BenchmarkError, wait
from dev.benchmarks.scale.clean import empty
from dev.benchmarks.scale.systems.base import PODS_PATH, Ground, Json

PROGRAM: Final = Path(recovery.__file__).with_name("program.py")
MERGE: Final = "application/merge-patch+json"
NODES: Final = "/api/v1/nodes"
BEGIN: Final = 4
START_SECONDS: Final = 120.0
BOUND_SECONDS: Final = 180.0
SETTLED_SECONDS: Final = 15.0
"""Seconds of training between two changes: longer than the cooldown of any system."""
POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Event:
    """An event after which the group must have another size."""

    name: str
    title: str
    size: int
    do: Callable[["Scene"], None]


@dataclass(slots=True)
class Scene:
    """The cluster, the job and its current group."""

    system: Elastic
    ground: Ground
    job: Job
    group: Group
    closed: str = ""
    """The cordoned node; empty for none."""

    def scale(self, workers: int) -> None:
        """Request this number of workers."""
        path = f"{self.system.fixed.jobs_path}/{self.job.name}"
        self.ground.api.call("PATCH", path, self.system.scaled(workers), MERGE)

    def close_node(self) -> None:
        """Cordon a node that has workers but not rank 0, and delete its pods."""
        pods = self.ground.api.call("GET", PODS_PATH)["items"]
        first = next(life.pod for life in self.group.lives if life.rank == 0)
        kept = next(pod["spec"]["nodeName"] for pod in pods if pod["metadata"]["name"] == first)
        self.closed = min({pod["spec"].get("nodeName") or kept for pod in pods} - {kept})
        self._schedule(self.closed, closed=True)
        for pod in pods:
            if pod["spec"].get("nodeName") == self.closed:
                self.ground.api.call("DELETE", f"{PODS_PATH}/{pod['metadata']['name']}")

    def open_node(self) -> None:
        """Uncordon the node."""
        self._schedule(self.closed, closed=False)
        self.closed = ""

    def _schedule(self, node: str, *, closed: bool) -> None:
        patch: Json = {"spec": {"unschedulable": closed or None}}
        self.ground.api.call("PATCH", f"{NODES}/{node}", patch, MERGE)


EVENTS: Final = (
    Event("shrink", "4 to 2, by scale", 2, lambda scene: scene.scale(2)),
    Event("grow", "2 to 4, by scale", 4, lambda scene: scene.scale(4)),
    Event("more", "4 to 6, by scale", LARGEST, lambda scene: scene.scale(LARGEST)),
    Event("close", "a node is cordoned, and its two workers are deleted", 4, Scene.close_node),
    Event("open", "the node is uncordoned", LARGEST, Scene.open_node),
)


def run(system: Elastic, ground: Ground, repeat: int) -> Iterator[Change]:
    """Run all events in order on one job.

    Raises:
        BenchmarkError: the job does not start.
    """
    with _training(system, ground, repeat) as (job, diaries):
        group = _await(diaries, BEGIN, 0.0, time.monotonic() + START_SECONDS)
        if group is None:
            raise BenchmarkError(f"{job.name} does not train within {START_SECONDS:.0f} s")
        scene = Scene(system, ground, job, group)
        try:
            for event in EVENTS:
                time.sleep(SETTLED_SECONDS)
                diaries.read()
                at = time.monotonic()
                event.do(scene)
                new = _await(diaries, event.size, at, at + BOUND_SECONDS)
                if new is None:
                    yield Change(event.name, system.name, repeat)
                    return
                seconds = new.first_step[1] - at
                gained, lost, step = earned(diaries.lives, at, new.first_step[1])
                yield Change(event.name, system.name, repeat, seconds, max(0.0, seconds - (gained + lost) * step), lost)
                scene.group = new
        finally:
            if scene.closed:
                scene.open_node()


@contextmanager
def _training(system: Elastic, ground: Ground, repeat: int) -> Iterator[tuple[Job, DiaryReader]]:
    """Create a job, and delete it with all its pods on exit."""
    folder = ground.folder / "elastic" / f"{system.name}-{repeat}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lives").mkdir(parents=True)
    for shared in (folder, folder / "lives"):
        shared.chmod(0o777)
    shutil.copyfile(PROGRAM, folder / "program.py")
    job = Job(f"elastic-{repeat}", folder)
    empty(ground)
    try:
        ground.api.call("POST", system.fixed.jobs_path, system.manifest(job, BEGIN))
        yield job, DiaryReader(folder / "lives")
    finally:
        empty(ground)
        end_all(job)


def _await(diaries: DiaryReader, size: int, after: float, deadline: float) -> Group | None:
    """Return the group of this size that started to train after `after`; None if there is none before the deadline."""

    def found() -> Group | None:
        groups = [group for group in diaries.read() if group.complete and group.first_step[1] > after]
        return groups[-1] if groups and groups[-1].size == size else None

    try:
        wait(lambda: found() is not None, deadline - time.monotonic(), "", pause=POLL_SECONDS)
    except BenchmarkError:
        return None
    return found()
