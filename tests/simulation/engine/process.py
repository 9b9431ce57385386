"""The operator as a process: the real one, all of it but HTTP and kopf, which can end at any callback and leaves nothing behind.

The only place that knows how the operator is put together.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from tests.simulation.engine import kopf_stand_in
from tests.simulation.engine.server import Server, Session
from tests.simulation.engine.virtual_time import Loop, Time
from trainyard.controller.bootstrap import assembly, operator as operator_module
from trainyard.controller.bootstrap.operator import Operator
from trainyard.controller.bootstrap.settings import Settings
from trainyard.controller.kopf_adapter import shell
from trainyard.engine.queue_metrics import EngineMetrics
from trainyard.kube.clock import ServerClock

if TYPE_CHECKING:
    from trainyard.kube.session import Session as RealSession

ALONE = Settings(concurrent_reconciles=3, instance="simulated", leader_election=False, relist_seconds=600)
ELECTED = Settings(concurrent_reconciles=3, instance="simulated", leader_election=True, relist_seconds=600)
PAGE = 2
"""So few objects in a page of a list that lists have several."""
WATCH_SECONDS = 1200
"""Watches end less often than the real ones, and jobs are listed less often: otherwise most of the time would be spent on rest."""


@contextmanager
def surroundings(time: Time) -> Iterator[None]:
    """Operators that run in here hear of TrainingJobs from kopf's stand-in, and know no other clock than this one."""
    clock = SimpleNamespace(monotonic=lambda: time.now)
    with (
        patch.object(shell, "run", kopf_stand_in.run),
        patch.object(assembly, "time", clock),
        patch.object(operator_module, "time", clock),
    ):
        yield


class Process:
    """One life of the operator."""

    def __init__(self, time: Time, server: Server, name: str, *, skew: float, elected: bool) -> None:
        """`name`: the pod's, a stroke, and what tells its processes apart. `skew`: seconds by which the clock of its machine is wrong. `elected`: it is one of several, of which one leads."""
        self.loop = Loop(time)  # type: ignore[abstract]  # typeshed calls abstract what asyncio leaves unimplemented
        clock = ServerClock(wall=lambda: time.seconds_of_day(skew), steady=self.loop.time)
        self.session = Session(server, self.loop, name, clock)
        self.frozen = False
        """Whether the machine has stopped it for a while."""
        self._stop = self.loop.within(asyncio.Event)
        self.operator = self.loop.within(lambda: self._assemble(elected=elected))
        self._main = self.loop.create_task(self.operator._run_components(self._stop), name="operator")

    @property
    def ended(self) -> bool:
        """Whether it has exited by itself, or on request."""
        return self._main.done()

    @property
    def leads(self) -> bool:
        """Whether it believes that it may write."""
        elector = self.operator.elector
        return elector is None or elector.leading

    def why(self) -> BaseException | None:
        """What it died of."""
        return None if self._main.cancelled() else self._main.exception()

    def stop(self) -> None:
        """SIGTERM."""
        self.loop.within(self._stop.set)

    def kill(self, arrives: Callable[[], bool]) -> None:
        """SIGKILL. `arrives` says of each request on its way whether it gets there."""
        self.session.abandon(arrives)
        self.loop.kill()

    def _assemble(self, *, elected: bool) -> Operator:
        registry = CollectorRegistry()
        metrics = EngineMetrics(registry, "trainingjob")
        session = cast("RealSession", self.session)
        operator = assembly.assemble(ELECTED if elected else ALONE, session, metrics, registry)
        for scope in operator.scopes:
            for watch in (scope.pods, scope.services):
                watch.clock, watch.page_size, watch.watch_seconds = self.loop.time, PAGE, WATCH_SECONDS
            scope.job_informer.clock = self.loop.time
        operator.reconciler.pace.clock = self.loop.time
        if operator.elector is not None:
            # The lease has connections of its own, which no permission is asked for.
            lease = Session(self.session.server, self.loop, self.session.name, self.session.clock)
            operator.elector.client = replace(operator.elector.client, session=cast("RealSession", lease))
            operator.elector.identity, operator.elector.clock = self.session.name, self.loop.time
            pod = self.session.name.split("/")[0]
            operator.elector.holder_has_exited = lambda holder: holder.startswith(f"{pod}/")
        operator.reconciler.events._clock = self.loop.time
        return operator
