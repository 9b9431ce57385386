"""Everything together: the operator, the API server, the cluster around it, and the one clock. Says what happens when; judges nothing."""

import logging
from contextlib import ExitStack
from random import Random

from typing_extensions import override

from tests.simulation.engine.attempt_history import AttemptHistory
from tests.simulation.engine.cluster_controllers import NODES, ClusterControllers
from tests.simulation.engine.invariants import InvariantError, Invariants
from tests.simulation.engine.network_faults import NetworkFaults
from tests.simulation.engine.process import Process, surroundings
from tests.simulation.engine.server import Server
from tests.simulation.engine.stored_objects import PODS_PLACE
from tests.simulation.engine.virtual_time import MOST, Time
from tests.support.fake_cluster import Json
from trainyard.engine.leader import LeadershipLostError
from trainyard.kube.errors import ApiError
from trainyard.kube.reflector import RestoredError

NAMESPACE = "lab"
CLOCKS = (0.0, -2.0, 3.0, 600.0, -600.0)
"""Whole seconds by which the clocks of the operator's machines are wrong, until it hears the API server's."""


class _ErrorLog(logging.Handler):
    """What the operator logs with a traceback: an unexpected exception."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.tracebacks: list[str] = []
        self._log = logging.getLogger("trainyard")
        self._before = self._log.level, self._log.propagate
        self._log.setLevel(logging.ERROR)
        self._log.propagate = False
        self._log.addHandler(self)

    @override
    def close(self) -> None:
        self._log.removeHandler(self)
        self._log.setLevel(self._before[0])
        self._log.propagate = self._before[1]

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.tracebacks.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


class EngineSimulation:
    """One run, from an empty cluster on. Chance comes from `seed` alone."""

    def __init__(self, seed: int, processes: int = 1) -> None:
        """`processes`: how many there are of the operator. Where it is more than one, one of them leads."""
        self.random = Random(seed)  # noqa: S311 - chance, not a secret
        self.time = Time()
        self.network_faults = NetworkFaults()
        self.server = Server(self.time, self.network_faults, self.random)
        self.ledger = AttemptHistory()
        lost: set[str] = set()
        self.laws = Invariants(self.server, self.ledger, lost, elected=processes > 1)
        self.server.on_repeat = self.laws.on_repeat
        self.life = ClusterControllers(self.server, self.time, self.random, lost, self.laws.given_up)
        self.server.cluster.listeners += [self.laws.on_change, self.life.on_change, self.server.on_change]
        self.processes: list[Process | None] = [None] * processes
        self.victim = 0
        """The process to which the fuse belongs."""
        self.fuse: int | None = None
        """After so many more of its callbacks the victim dies."""
        self.next_fuses: list[int] = []
        """The fuses of its next lives."""
        self.downtime = 1.0
        self._started = 0
        self._error_log = _ErrorLog()
        self._around = ExitStack()
        self._around.callback(self._error_log.close)
        self._around.enter_context(surroundings(self.time))
        for place in range(processes):
            self.start(place)

    def close(self) -> None:
        """The log is as it was. The operator, if it lives, is left to itself."""
        for process in self.processes:
            if process is not None:
                process.kill(lambda: False)
        self._around.close()

    # Time

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end = self.time.now + seconds
        while True:
            for place, process in enumerate(self.processes):
                if process is not None and process.loop.busy and not process.frozen:
                    fused = self.fuse is not None and place == self.victim
                    made = process.loop.run(self.fuse if fused and self.fuse is not None else MOST)
                    self._look_after(place, process, made, fused=fused)
                    break
            else:
                if not self.time.jump(end):
                    return

    def _look_after(self, place: int, process: Process, made: int, *, fused: bool) -> None:
        if made >= MOST:
            raise InvariantError("the operator runs in circles")
        if self._error_log.tracebacks:
            raise InvariantError(f"the operator logs a traceback: {self._error_log.tracebacks[0]}")
        if process.ended:
            why = process.why()
            if why is not None and not isinstance(why, LeadershipLostError | RestoredError):
                raise InvariantError("the operator died of itself") from why
            self._bury(place)
        elif fused and self.fuse is not None:
            self.fuse -= made
            if self.fuse <= 0:
                self._bury(place)

    # The operator's lives

    def start(self, place: int) -> None:
        """A process starts."""
        if place == self.victim:
            self.fuse = self.next_fuses.pop(0) if self.next_fuses else None
        self._started += 1
        name = f"pod-{place}/process-{self._started}"
        skew = self.random.choice(CLOCKS)
        elected = len(self.processes) > 1
        self.processes[place] = Process(self.time, self.server, name, skew=skew, elected=elected)

    def stop(self, place: int) -> None:
        """A process receives SIGTERM, and is started again: for example an update."""
        process = self.processes[place]
        if process is not None:
            process.stop()

    def freeze(self, place: int, seconds: float) -> None:
        """A process is stopped by its machine, and goes on later as if nothing had been."""
        process = self.processes[place]
        if process is not None and not process.frozen:
            process.frozen = True
            self.time.after(seconds, lambda: setattr(process, "frozen", False))

    def leaders(self) -> list[int]:
        """The places of the processes that believe to lead."""
        return [place for place, process in enumerate(self.processes) if process is not None and process.leads]

    def _bury(self, place: int) -> None:
        process, self.processes[place] = self.processes[place], None
        if place == self.victim:
            self.fuse = None
        assert process is not None
        process.kill(lambda: self.random.random() < 0.5)
        self.time.after(self.downtime, lambda: self.start(place))

    # Users and the cluster

    def pods(self) -> list[Json]:
        """All pods."""
        return self.server.cluster.held(PODS_PLACE)

    def break_watches(self, plural: str, how: str) -> None:
        """All watches on these are cut, ended, silent, or told that the history has been thrown away."""
        if how == "expired":
            # Others have written meanwhile: a client that goes on from a version it knows is too late.
            self.server.cluster.version += 1
            self.server.cluster.compact()
        for stream in self.server.streams:
            if stream.over or stream.plural != plural:
                continue
            match how:
                case "cut":
                    stream.finish(ApiError(0, "Unreachable", "connection reset by peer"))
                case "ended":
                    stream.finish(None)
                case "silent":
                    stream.hush()
                case _:
                    stream.error({"code": 410, "reason": "Expired", "message": "too old resource version"})

    def clear(self) -> None:
        """All troubles are over: what was lost on the way is made good. Nodes come back, or never do."""
        self.network_faults.clear()
        self.fuse, self.next_fuses = None, []
        for process in self.processes:
            if process is not None:
                process.frozen = False
        self.life.no_images, self.life.refusals = False, 0
        for node in NODES:
            if node in self.life.lost and self.random.random() < 0.5:
                self.life.come_back(node, rebooted=False)
        for plural in sorted(self.network_faults.lossy):
            self.break_watches(plural, "expired")
