"""What is done to a job that trains: one function a fault, which says when it was done."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Final

from dev.benchmarks.recovery import ranks
from dev.benchmarks.recovery.milestones import WORKERS, Group
from dev.benchmarks.recovery.operators import Operator
from dev.benchmarks.recovery.systems import HANG_SECONDS, Job
from dev.benchmarks.scale.api import BenchmarkError
from dev.benchmarks.scale.child import ROOT
from dev.benchmarks.scale.systems.base import PODS_PATH, Ground
from dev.localcluster import lock, node
from dev.localcluster.addresses import node_name

NODES: Final = 3
KILL_AFTER_SECONDS: Final = 0.5
"""So long after the fault the operator dies: it is then in the middle of it."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where the fault falls."""

    ground: Ground
    operator: Operator
    job: Job
    group: Group
    pids: Mapping[int, int]
    """The process of each rank."""
    rank: int
    """Whom it hits, where it hits one alone."""

    @property
    def pod(self) -> str:
        """The pod of that rank."""
        return next(life.pod for life in self.group.lives if life.rank == self.rank)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of trouble."""

    name: str
    title: str
    inject: Callable[[Scene], float]
    """Does it. Returns when, on the monotonic clock."""
    bound: float = 120.0
    """A recovery that takes longer never comes."""
    aim: float | None = None
    """What the median for this operator may be."""
    settled: int = 200
    """Steps that the job has done before, at least."""
    undo: Callable[[Scene], None] | None = None


def rank_of(repeat: int) -> int:
    """Whom the repeats hit: rank 0, which holds the store, every other time, and the others in turn."""
    return 0 if repeat % 2 else 1 + repeat // 2 % (WORKERS - 1)


def _kill(scene: Scene) -> float:
    return ranks.send(scene.pids[scene.rank], SIGKILL)


def _raise(scene: Scene) -> float:
    (scene.job.folder / f"raise-{scene.rank}").touch()
    return time.monotonic()


def _delete_pod(scene: Scene) -> float:
    now = time.monotonic()
    scene.ground.api.call("DELETE", f"{PODS_PATH}/{scene.pod}")
    return now


def _delete_all(scene: Scene) -> float:
    now = time.monotonic()
    scene.ground.api.call("DELETE", PODS_PATH)
    return now


def _cut_power(scene: Scene) -> float:
    with lock.exclusive(lock.LOCK, patience=60, busy="another localcluster command is at work"):
        number = _expendable(scene)
        now = time.monotonic()
        node.cut_power(number, scene.ground.paths)
    return now


def _boot(scene: Scene) -> None:
    command = [sys.executable, "-m", "dev.localcluster", "up", f"--nodes={NODES}"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"the node does not come back: {done.stdout}{done.stderr}")
    scene.operator.mend()


def _hang(scene: Scene) -> float:
    return ranks.send(scene.pids[scene.rank], SIGSTOP)


def _go_on(scene: Scene) -> None:
    ranks.send(scene.pids[scene.rank], SIGCONT)


def _kill_operator(scene: Scene) -> float:
    now = _delete_pod(scene)
    time.sleep(KILL_AFTER_SECONDS)
    scene.operator.kill()
    return now


def _mend(scene: Scene) -> None:
    scene.operator.mend()


def _leave(scene: Scene) -> float:
    now = time.monotonic()
    scene.operator.leave()
    return now


def _expendable(scene: Scene) -> int:
    """A node with workers and without the operator; the one of the rank that is to be hit, if that is one."""
    places = {
        pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
        for pod in scene.ground.api.call("GET", PODS_PATH)["items"]
    }
    needed = scene.operator.nodes()
    free = [number for number in range(1, NODES + 1) if node_name(number) not in needed]
    free.sort(key=lambda number: node_name(number) != places.get(scene.pod))
    if not free:
        raise BenchmarkError("the operator is on every node: none can be switched off")
    return free[0]


FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault
    for fault in (
        Fault("kill", "the process of one rank is killed", _kill, aim=5),
        Fault("raise", "one rank raises", _raise, aim=5),
        Fault("pod", "one pod is deleted", _delete_pod, aim=15),
        Fault("pods", "all pods are deleted", _delete_all, aim=20),
        Fault("power", "the power of a node is cut", _cut_power, bound=180, aim=45, undo=_boot),
        Fault("hang", "the process of one rank is stopped, and hangs", _hang, aim=HANG_SECONDS + 5),
        Fault(
            "operator", "one pod is deleted, and the operator killed half a second later", _kill_operator, undo=_mend
        ),
    )
}
AWAY: Final = Fault("away", "the operator is away", _leave, undo=_mend)
