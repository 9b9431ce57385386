"""Measure one fault under one system: inject it into a new job, and watch the job until it trains again."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, ClassVar, Final

from dev.benchmarks.recovery import parts, ranks
from dev.benchmarks.recovery.faults import Fault, Scene
from dev.benchmarks.recovery.milestones import WORKERS, DiaryReader, Group
from dev.benchmarks.recovery.operators import Operator
from dev.benchmarks.recovery.results import Run
from dev.benchmarks.recovery.systems import CHECKPOINT_EVERY, Job, System
from dev.benchmarks.recovery.watch import Event, Watch
from dev.benchmarks.scale.api import BenchmarkError, wait
from dev.benchmarks.scale.clean import empty
from dev.benchmarks.scale.systems.base import PODS_PATH, Ground

START_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.1
GONE_SECONDS: Final = 30.0
LOG_LINES: Final = 500


@dataclass(frozen=True, slots=True)
class Trial:
    """A system and its cluster. Each trial has a new job, so that earlier failures do not use up its restart budget."""

    system: System
    operator: Operator
    ground: Ground
    size: ClassVar[int] = WORKERS
    """The number of ranks."""
    folder: ClassVar[str] = "recovery"

    def go(self, fault: Fault, repeat: int) -> Run:
        """Measure one fault.

        Raises:
            BenchmarkError: the job does not start, or the fault cannot be injected.
        """
        with self.training(f"{fault.name}-{repeat}") as (job, diaries):
            pods, own = self._watches(job)
            with pods, own:
                # Vary the distance from the last checkpoint.
                group = await_steps(diaries, fault.settled + repeat * 3 % CHECKPOINT_EVERY)
                restarts = self._restarts(own.last())
                pids = self.living(job, group)
                scene = Scene(self.ground, self.operator, job, group, pids, fault.target(repeat))
                if len(scene.pids) != self.size:
                    raise BenchmarkError(f"{len(scene.pids)} of {self.size} ranks were found")
                try:
                    with ranks.Farewell(scene.pids.values()) as farewell:
                        at = fault.inject(scene)
                        new = _await_group(diaries, group, at + fault.bound, lambda: self._has_ended(own.last()))
                        if new is None:
                            self._keep_logs(job)
                        moments = parts.Moments(
                            at,
                            pods.first(at, parts.shows_fault),
                            own.first(at, lambda event: (self._restarts(event) or 0) > (restarts or 0)),
                            farewell.last,
                        )
                finally:
                    if fault.undo:
                        fault.undo(scene)
        return self._run(fault, repeat, moments, group, new, ended=self._has_ended(own.last()))

    @contextmanager
    def training(self, name: str) -> Iterator[tuple[Job, DiaryReader]]:
        """Create a job of this name, and delete it with all its pods on exit."""
        folder = self.ground.folder / self.folder / f"{self.system.name}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "lives").mkdir(parents=True)
        for shared in (folder, folder / "lives"):
            shared.chmod(0o777)
        for there, source in self.programs().items():
            (folder / there).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / there)
        job = Job(name, folder)
        empty(self.ground, self.system.jobs_path)
        try:
            self.ground.api.call("POST", self.system.jobs_path, self.system.manifest(job))
            yield job, DiaryReader(folder / "lives")
        finally:
            empty(self.ground, self.system.jobs_path)
            self.end(job)

    def programs(self) -> dict[str, Path]:
        """Return the files that the pods find in their shared folder, by their path there."""
        return {"program.py": Path(__file__).with_name("program.py")}

    def living(self, job: Job, group: Group) -> dict[int, int]:  # noqa: ARG002 - for subclasses
        """Return the process of each rank."""
        return ranks.living(job.name)

    def end(self, job: Job) -> None:
        """Kill the remaining processes of the job."""
        end_all(job)

    def _keep_logs(self, job: Job) -> None:
        """Save the logs of the workers before their pods are deleted."""
        for pod in self.ground.api.call("GET", PODS_PATH)["items"]:
            name = pod["metadata"]["name"]
            _, text = self.ground.api.text("GET", f"{PODS_PATH}/{name}/log?tailLines={LOG_LINES}")
            (job.folder / f"{name}.log").write_text(text)

    def _watches(self, job: Job) -> tuple[Watch, Watch]:
        api = self.ground.api
        pods = Watch(api, PODS_PATH, f"labelSelector=bench-job%3D{job.name}")
        return pods, Watch(api, self.system.jobs_path, f"fieldSelector=metadata.name%3D{job.name}")

    def _restarts(self, event: Event | None) -> int | None:
        job: Mapping[str, Any] = event["object"] if event else {}
        return self.system.restarts(job)

    def _has_ended(self, event: Event | None) -> bool:
        return event is not None and self.system.has_ended(event["object"])

    def _run(
        self, fault: Fault, repeat: int, moments: parts.Moments, old: Group, new: Group | None, *, ended: bool
    ) -> Run:
        name = self.system.name
        hit = f"rank {fault.target(repeat)}"
        if new is None:
            why = "its job has ended" if ended else f"not within {fault.bound:.0f} s"
            return Run(fault.name, name, repeat, note=f"{hit}: {why}")
        seconds = new.first_step[1] - moments.fault
        return Run(fault.name, name, repeat, seconds, parts.steps_lost(old, new), parts.split(moments, new), hit)


def await_steps(diaries: DiaryReader, steps: int) -> Group:
    """Wait until a group has reached this step, and return it.

    Raises:
        BenchmarkError: no group reaches it in time.
    """
    found: list[Group] = []

    def far() -> bool:
        found[:] = [group for group in diaries.read() if group.complete and group.last_step >= steps]
        return bool(found)

    wait(far, START_SECONDS, f"the job did not reach step {steps} within {START_SECONDS:.0f} s", pause=POLL_SECONDS)
    return found[-1]


def _await_group(diaries: DiaryReader, old: Group, deadline: float, has_ended: Callable[[], bool]) -> Group | None:
    while time.monotonic() < deadline:
        ended = has_ended()
        for group in diaries.read():
            if group.complete and group.name != old.name:
                return group
        if ended:
            return None
        time.sleep(POLL_SECONDS)
    return None


def end_all(job: Job) -> None:
    """Kill the remaining processes of a job, so that the next job does not share the CPU with them."""

    def gone() -> bool:
        left = ranks.living(job.name)
        for pid in left.values():
            ranks.send(pid, SIGKILL)
        return not left

    wait(gone, GONE_SECONDS, f"processes of {job.name} do not exit")
