"""Gangs under real gang schedulers: a group that does not fit gets no node at all, and all of them once there is room.

`make test-long` runs it: the schedulers take ten minutes to compile.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.gang_scheduler import ALL, CPU, GANGS, GATES, PATHS, scheduling
from tests.api.plane import Plane, running
from tests.api.process import operator
from tests.api.real_nodes import BoundPods, nodes, open_queue
from tests.support import third_party_crds
from tests.support.polling import until
from tests.unit.helm.chart import Chart

pytestmark = pytest.mark.skipif(not os.environ.get("LONG"), reason="compiles schedulers: make test-long")
WAIT_SECONDS = 6
"""For which a group that does not fit is watched."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("schedulers") / "state"
    with running(folder, ["lab"], third_party_crds.gang_crds(), GATES) as made:
        yield made


@pytest.mark.parametrize("scheduler", PATHS)
def test_group_gets_all_of_its_nodes_or_none(plane: Plane, chart: Chart, tmp_path: Path, scheduler: str) -> None:
    plane.grant_chart(chart, GANGS)
    stop = threading.Event()
    with (
        nodes(plane, 3, 1),
        scheduling(scheduler, plane, tmp_path) as process,
        BoundPods(plane, "lab") as lab,
        operator(plane, scheduler, gang_schedulers=ALL, leader_election="false") as op,
    ):
        opener = threading.Thread(target=open_queue, args=(plane, "default", stop))
        if scheduler == "volcano":
            opener.start()
        try:
            lab.submit("first", template=CPU, scheduling={"gang": scheduler})
            until(lambda: lab.bound("first") == 2 or process.poll() is not None, 60, "the first group's nodes")
            assert process.poll() is None, (tmp_path / f"{scheduler}.log").read_text()[-3000:]
            lab.until_phase("Running", "first")
            lab.submit("second", template=CPU, scheduling={"gang": scheduler})
            until(lambda: len(lab.pods("second")) == 2, 20, "the second group's pods")
            threading.Event().wait(WAIT_SECONDS)
            assert lab.bound("second") == 0, "one node is free, and the group needs two"
            lab.remove("first")
            until(lambda: lab.bound("second") == 2, 60, "all nodes of the second group")
            lab.until_phase("Running", "second")
            assert not op.bugs()
        finally:
            stop.set()
            if scheduler == "volcano":
                opener.join()
            for name in ("first", "second"):
                lab.remove(name)
            until(lambda: not lab.pods("first") and not lab.pods("second"), 30, "the pods to be gone")
