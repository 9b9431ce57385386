"""One fault under one system: a fresh job trains, is hit, and is watched until it trains again."""

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

from dev.benchmarks.recovery import parts, ranks
from dev.benchmarks.recovery.faults import Fault, Scene, rank_of
from dev.benchmarks.recovery.milestones import WORKERS, Group, Story
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
    """Who is measured, and where. Each trial has a job of its own, so that nobody's patience with crashes is used up by earlier ones."""

    system: System
    operator: Operator
    ground: Ground

    def go(self, fault: Fault, repeat: int) -> Run:
        """Measure.

        Raises:
            BenchmarkError: there is nothing to measure: the job does not start, or the fault cannot be brought about.
        """
        with self.training(f"{fault.name}-{repeat}") as (job, story):
            pods, own = self._watches(job)
            with pods, own:
                # At another place between two checkpoints each time.
                group = await_steps(story, fault.settled + repeat * 3 % CHECKPOINT_EVERY)
                told = self._restarts(own.last())
                scene = Scene(self.ground, self.operator, job, group, ranks.living(job.name), rank_of(repeat))
                if len(scene.pids) != WORKERS:
                    raise BenchmarkError(f"{len(scene.pids)} of {WORKERS} ranks are found among the processes")
                try:
                    with ranks.Farewell(scene.pids.values()) as farewell:
                        at = fault.inject(scene)
                        new = _await_group(story, group, at + fault.bound)
                        if new is None:
                            self._keep_logs(job)
                        moments = parts.Moments(
                            at,
                            pods.first(at, parts.tells_of_fault),
                            own.first(at, lambda event: (self._restarts(event) or 0) > (told or 0)),
                            farewell.last,
                        )
                finally:
                    if fault.undo:
                        fault.undo(scene)
        return self._run(fault, repeat, moments, group, new)

    @contextmanager
    def training(self, name: str) -> Iterator[tuple[Job, Story]]:
        """A job of this name, from its creation until nothing is left of it."""
        folder = self.ground.folder / "recovery" / f"{self.system.name}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "lives").mkdir(parents=True)
        for shared in (folder, folder / "lives"):
            shared.chmod(0o777)
        shutil.copyfile(Path(__file__).with_name("program.py"), folder / "program.py")
        job = Job(name, folder)
        empty(self.ground)
        try:
            self.ground.api.call("POST", self.system.jobs_path, self.system.manifest(job))
            yield job, Story(folder / "lives")
        finally:
            empty(self.ground)
            end_all(job)

    def _keep_logs(self, job: Job) -> None:
        """What the workers said, beside their diaries: the pods are about to go."""
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

    def _run(self, fault: Fault, repeat: int, moments: parts.Moments, old: Group, new: Group | None) -> Run:
        name = self.system.name
        hit = f"rank {rank_of(repeat)}"
        if new is None:
            return Run(fault.name, name, repeat, note=f"{hit}: not within {fault.bound:.0f} s")
        seconds = new.first_step[1] - moments.fault
        return Run(fault.name, name, repeat, seconds, parts.steps_lost(old, new), parts.split(moments, new), hit)


def await_steps(story: Story, steps: int) -> Group:
    """The group that trains, once it has come so far.

    Raises:
        BenchmarkError: it does not.
    """
    found: list[Group] = []

    def far() -> bool:
        found[:] = [group for group in story.read() if group.complete and group.last_step >= steps]
        return bool(found)

    wait(far, START_SECONDS, f"the job did not come to step {steps} within {START_SECONDS:.0f} s", pause=POLL_SECONDS)
    return found[-1]


def _await_group(story: Story, old: Group, deadline: float) -> Group | None:
    while time.monotonic() < deadline:
        for group in story.read():
            if group.complete and group.name != old.name:
                return group
        time.sleep(POLL_SECONDS)
    return None


def end_all(job: Job) -> None:
    """Kubelets end containers of deleted pods in their own time; the next job shall not share the processors with them."""

    def gone() -> bool:
        left = ranks.living(job.name)
        for pid in left.values():
            ranks.send(pid, SIGKILL)
        return not left

    wait(gone, GONE_SECONDS, f"processes of {job.name} do not end")
