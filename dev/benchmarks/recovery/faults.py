"""Inject faults into a running job: one function per fault, which returns the time of the fault."""

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
"""Seconds from the fault to the kill of the operator, so that it dies during the recovery."""


def rank_of(repeat: int) -> int:
    """Return the target rank of a repeat: rank 0, which hosts the store, every second time, and the others in turn."""
    return 0 if repeat % 2 else 1 + repeat // 2 % (WORKERS - 1)


@dataclass(frozen=True, slots=True)
class Scene:
    """The job and the cluster that a fault is injected into."""

    ground: Ground
    operator: Operator
    job: Job
    group: Group
    pids: Mapping[int, int]
    """Process ID of each rank."""
    rank: int
    """The target rank of a fault of one rank."""

    @property
    def pod(self) -> str:
        """Return the name of the target rank's pod."""
        return next(life.pod for life in self.group.lives if life.rank == self.rank)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    title: str
    inject: Callable[[Scene], float]
    """Injects the fault, and returns its monotonic time."""
    bound: float = 120.0
    """Seconds after which a recovery counts as never completed."""
    aim: float | None = None
    """Largest allowed median of this operator in seconds."""
    settled: int = 200
    """Minimum of steps before the fault."""
    undo: Callable[[Scene], None] | None = None
    target: Callable[[int], int] = rank_of
    """Returns the target rank of a repeat."""


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
    with lock.exclusive(lock.LOCK, patience=60, busy="another localcluster command is running"):
        number = _expendable(scene)
        now = time.monotonic()
        node.cut_power(number, scene.ground.paths)
    return now


def _boot(scene: Scene) -> None:
    command = [sys.executable, "-m", "dev.localcluster", "up", f"--nodes={NODES}"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"the node did not start: {done.stdout}{done.stderr}")
    scene.operator.restore()


def _hang(scene: Scene) -> float:
    return ranks.send(scene.pids[scene.rank], SIGSTOP)


def _go_on(scene: Scene) -> None:
    ranks.send(scene.pids[scene.rank], SIGCONT)


def _kill_operator(scene: Scene) -> float:
    now = _delete_pod(scene)
    time.sleep(KILL_AFTER_SECONDS)
    scene.operator.kill()
    return now


def _restore(scene: Scene) -> None:
    scene.operator.restore()


def _leave(scene: Scene) -> float:
    now = time.monotonic()
    scene.operator.leave()
    return now


def _expendable(scene: Scene) -> int:
    """Return a node with workers and without the operator; preferably the node of the target rank."""
    nodes = {
        pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
        for pod in scene.ground.api.call("GET", PODS_PATH)["items"]
    }
    needed = scene.operator.nodes()
    free = [number for number in range(1, NODES + 1) if node_name(number) not in needed]
    free.sort(key=lambda number: node_name(number) != nodes.get(scene.pod))
    if not free:
        raise BenchmarkError("every node runs the operator: none can be powered off")
    return free[0]


FAULTS: Final[Mapping[str, Fault]] = {
    fault.name: fault
    for fault in (
        Fault("kill", "the process of one rank is killed", _kill, aim=5),
        Fault("raise", "one rank raises", _raise, aim=5),
        Fault("pod", "one pod is deleted", _delete_pod, aim=15),
        Fault("pods", "all pods are deleted", _delete_all, aim=20),
        Fault("power", "the power of a node is cut", _cut_power, bound=180, aim=45, undo=_boot),
        Fault("hang", "the process of one rank hangs (SIGSTOP)", _hang, aim=HANG_SECONDS + 5),
        Fault("operator", "one pod is deleted, and the operator is killed 0.5 s later", _kill_operator, undo=_restore),
    )
}
AWAY: Final = Fault("away", "the operator is stopped", _leave, undo=_restore)
