"""What a restart says about itself."""

from dataclasses import replace

import pytest

from tests.support.jobs import NOW
from tests.unit.domain.recovering import RUNS
from trainyard.domain.plan import plan


@pytest.mark.parametrize(
    ("connected", "phrase"),
    [
        ((2,), "creating a new pod for worker 0, because the agent of worker 0 is not connected, and restarting"),
        ((), "creating new pods for 2 workers (0, 2), because the agents of workers 0, 2 are not connected, and"),
    ],
)
def test_worker_without_connected_agent_gets_a_pod(connected: tuple[int, ...], phrase: str) -> None:
    failed = RUNS.reported_failed(1)
    agents = {
        uid: agent
        for uid, agent in (failed.agents or {}).items()
        if uid in {"pod-1-1", *(f"pod-{i}-1" for i in connected)}
    }
    assert phrase in plan(replace(failed, agents=agents).snapshot, NOW).events[0].note
