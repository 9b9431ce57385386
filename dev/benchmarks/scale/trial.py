"""One outing of one system: its operator is started, its fleet is created and measured, and everything is taken away again."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from dev.benchmarks.scale.api import STRATEGIC, BenchmarkError, wait
from dev.benchmarks.scale.child import Child, daemon, end
from dev.benchmarks.scale.clean import clean
from dev.benchmarks.scale.counters import attributed, since
from dev.benchmarks.scale.fleet import DEADLINE_SECONDS, IDLE_SECONDS, NAMESPACE, Fleet, Outing
from dev.benchmarks.scale.meter import Meter, Reading, scrape
from dev.benchmarks.scale.results import Run
from dev.benchmarks.scale.systems.base import PODS_PATH, Command, Ground, System

START_SECONDS: Final = 90.0
MILESTONES: Final = ("created", "running", "status")
EXIT_CODE: Final = 137
"""Of the worker that fails: killed, which every system takes for worth a new try."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Who is measured, and where."""

    system: System
    ground: Ground
    repeat: int
    patience: float = DEADLINE_SECONDS

    def go(self, outing: Outing) -> list[Run]:
        """Measure.

        Raises:
            BenchmarkError: it cannot be measured.
        """
        self.ground.api.ensure("/api/v1/namespaces", {"kind": "Namespace", "metadata": {"name": NAMESPACE}})
        self.system.install(self.ground)
        clean(self.ground)
        try:
            with self._operator(outing) as (pids, command), self._watch(outing.fleet) as watch:
                return self._measure(outing, pids, command, watch)
        finally:
            clean(self.ground)

    def give_up(self, outing: Outing, why: str) -> list[Run]:
        """Nothing could be measured."""
        return [self._nothing(case, outing.fleet, why) for case in outing.cases]

    def _nothing(self, case: str, fleet: Fleet, why: str) -> Run:
        return Run(case, self.system.name, self.repeat, fleet.pods, note=why)

    def _measure(self, outing: Outing, pids: list[int], command: Command | None, watch: Child) -> list[Run]:
        fleet = outing.fleet
        with self._load(fleet) as load:
            meter = Meter(self.ground, pids or [load.pid], command)
            before = meter.read()
            load.send("go")
            began, sent_s = _sent(load)
            times, note = self._await(watch, fleet, began)
            if not note:
                meter.calm()
            times["sent"] = sent_s
            runs = [self._run(outing.case, fleet, before, meter.read(), times=times, note=note)]
        if note:
            stuck = f"not measured: ({outing.case}) did not come to its end"
            return [*runs, *(self._nothing(case, fleet, stuck) for case in outing.cases[1:])]
        if outing.failure and command:
            runs.append(self._failure(outing.failure, fleet, meter, watch))
        if outing.idle and command:
            runs.append(self._idle(outing.idle, fleet, meter))
        return runs

    def _failure(self, case: str, fleet: Fleet, meter: Meter, watch: Child) -> Run:
        pod = self.ground.api.call("GET", f"{PODS_PATH}?limit=1")["items"][0]
        watch.send("again")
        watch.expect("numbers", START_SECONDS)
        before = meter.read()
        began = time.monotonic()
        path = f"{PODS_PATH}/{pod['metadata']['name']}/status"
        self.ground.api.call("PATCH", path, _failed(pod), STRATEGIC)
        times, note = self._await(watch, fleet, began)
        meter.calm()
        note = note or self.system.after_failure
        return self._run(case, fleet, before, meter.read(), times=times, note=note)

    def _idle(self, case: str, fleet: Fleet, meter: Meter) -> Run:
        before = meter.read()
        time.sleep(IDLE_SECONDS)
        return self._run(case, fleet, before, meter.read(), times={}, note="")

    def _await(self, watch: Child, fleet: Fleet, began: float) -> tuple[dict[str, float], str]:
        wanted = set(MILESTONES if self.system.jobs_path else MILESTONES[:2])
        deadline = began + self.patience
        times: dict[str, float] = {}
        while wanted - times.keys():
            message = watch.receive(deadline)
            if message is None:
                watch.send("numbers")
                return times, self._late(watch.expect("numbers", START_SECONDS)["numbers"], fleet)
            times[message["reached"]] = message["at"] - began
        return times, ""

    def _late(self, numbers: dict[str, int], fleet: Fleet) -> str:
        return (
            f"after {self.patience:.0f} s {numbers['created']} of {fleet.pods} pods exist, {numbers['running']} run,"
            f" and the status of {numbers['status']} of {fleet.jobs} jobs reports it"
        )

    def _run(
        self, case: str, fleet: Fleet, before: Reading, after: Reading, *, times: dict[str, float], note: str
    ) -> Run:
        calls, writes = since(before.calls, after.calls), since(before.writes, after.writes)
        return Run(
            case,
            self.system.name,
            self.repeat,
            fleet.pods,
            times.get("created"),
            times.get("running"),
            times.get("status"),
            sent_s=times.get("sent"),
            cpu_s=round(after.usage.cpu_s - before.usage.cpu_s, 3),
            rss_mib=round(after.usage.peak_mib, 1),
            calls=attributed(calls, writes, self.system.own_writes, self.system.other_writes)
            if self.system.jobs_path
            else dict(Counter(f"POST {path.rsplit('/', 1)[1]}" for path, _ in self.system.load(fleet))),
            controller_manager_s=round(after.controller_manager_s - before.controller_manager_s, 3),
            controller_manager_calls=since(before.controller_manager_calls, after.controller_manager_calls),
            control_plane_s=round(after.control_plane_s - before.control_plane_s, 3),
            writes=writes,
            note=note,
        )

    @contextmanager
    def _operator(self, outing: Outing) -> Iterator[tuple[list[int], Command | None]]:
        command = self.system.command(self.ground)
        if command is None:
            yield [], None
            return
        log = self.ground.folder / "logs" / f"{self.system.name}-{outing.case}-{self.repeat}.log"
        process = daemon(command.argv, command.environment, log)

        def check() -> None:
            if process.poll() is not None:
                raise BenchmarkError(f"{self.system.name} exited unexpectedly: see {log}")

        try:
            self._await_canary(command, check)
            yield [process.pid], command
            check()
        finally:
            end(process)

    def _await_canary(self, command: Command, check: Callable[[], None]) -> None:
        """A job of one worker gets its pod: then the operator's caches are full and it is at work."""

        def serves() -> bool:
            check()
            try:
                return "rest_client_requests_total" in scrape(command.metrics, command.headers)
            except BenchmarkError:
                return False

        def works() -> bool:
            check()
            return not self.ground.api.is_empty(PODS_PATH)

        wait(serves, START_SECONDS, f"{self.system.name} does not serve its metrics")
        ((path, job),) = self.system.load(Fleet(1, 1))
        job["metadata"]["name"] = "canary"
        self.ground.api.call("POST", path, job)
        wait(works, START_SECONDS, f"{self.system.name} made no pod for a first job")
        clean(self.ground)

    @contextmanager
    def _watch(self, fleet: Fleet) -> Iterator[Child]:
        words = (*_reach(self.ground), self.system.name, str(fleet.jobs), str(fleet.workers))
        with Child("dev.benchmarks.scale.watch", *words) as watch:
            watch.expect("ready", START_SECONDS)
            yield watch

    @contextmanager
    def _load(self, fleet: Fleet) -> Iterator[Child]:
        posts = self.system.load(fleet)
        file = self.ground.folder / "load.tsv"
        file.write_text("".join(f"{path}\t{json.dumps(body, separators=(',', ':'))}\n" for path, body in posts))
        with Child("dev.benchmarks.scale.load", *_reach(self.ground), str(file)) as load:
            load.expect("ready", START_SECONDS)
            yield load


def _reach(ground: Ground) -> tuple[str, str]:
    return ground.api.server, str(ground.api.keys)


def _sent(load: Child) -> tuple[float, float]:
    sent = load.expect("began", DEADLINE_SECONDS)
    if sent["refused"]:
        raise BenchmarkError(f"the API server refused what was sent: {sent['refused'][0]}")
    return sent["began"], sent["ended"] - sent["began"]


def _failed(pod: dict[str, Any]) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ended = {"exitCode": EXIT_CODE, "reason": "Error", "startedAt": pod["status"]["startTime"], "finishedAt": now}
    containers = [
        {"name": container["name"], "ready": False, "started": False, "state": {"running": None, "terminated": ended}}
        for container in pod["status"]["containerStatuses"]
    ]
    return {"status": {"phase": "Failed", "containerStatuses": containers}}
