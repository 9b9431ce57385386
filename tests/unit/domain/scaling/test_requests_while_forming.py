"""Requests for other sizes while a group forms after a failure: it gets the last one, by one more attempt."""

from tests.support.elastic_jobs import joining_ready
from tests.support.jobs import Scene
from tests.support.reconciles import act, names, running
from trainyard.api.agent_protocol import AgentState
from trainyard.api.internal_status import Group, Joining
from trainyard.api.status import Phase


def forming() -> Scene:
    """Four workers, of which a rank has failed: attempt 2 is stored, and no worker waits for the others yet."""
    scene = act(running(4).reported_failed(1))
    assert where(scene) == (2, Phase.RESTARTING, 1, 0)
    return scene


def where(scene: Scene) -> tuple[int, Phase | None, int, int]:
    """The attempt, the phase, and what was counted: failures and resizes."""
    status = scene.status
    return status.attempt, status.phase, status.restarts.failures, status.restarts.resizes


def formed(scene: Scene, workers: int) -> Scene:
    """So many workers have formed a group."""
    scene = act(act(scene.with_agents(AgentState.WAITING, *range(workers))))
    return act(scene.with_agents(AgentState.RUNNING, *range(workers)))


def joined(scene: Scene) -> Scene:
    """All joining workers are ready."""
    joining = scene.status.internal.joining
    assert joining is not None
    for index in range(joining.current_size, joining.target_size):
        scene = joining_ready(scene, index, joining.attempt)
    return act(scene)


def test_unobserved_request_costs_nothing() -> None:
    scene = act(act(forming().with_spec(replicas=2).with_spec(replicas=6)))
    assert scene.status.internal.joining == Joining(current_size=4, target_size=6, attempt=2)
    scene = formed(scene, 4)
    assert where(scene) == (2, Phase.RUNNING, 1, 0), "the attempt that formed goes on at its own size"
    scene = joined(scene)
    assert where(scene) == (3, Phase.RESTARTING, 1, 1)
    assert scene.status.internal.group is not None
    assert scene.status.internal.group.size == 6
    assert where(formed(scene, 6)) == (3, Phase.RUNNING, 1, 1), "and that is all"


def test_observed_scale_down_replaces_forming_group() -> None:
    """Nothing is lost by it: attempt 2 has done no step. What comes after is one attempt more, as before."""
    scene = act(act(forming().with_spec(replicas=2)))
    assert (where(scene), scene.status.internal.group) == (
        (3, Phase.RESTARTING, 1, 1),
        Group(created_in_attempt=1, size=2),
    )
    scene = act(act(scene.with_spec(replicas=6)))
    assert names(scene) == ["0-1", "1-1", "2-3", "3-3", "4-3", "5-3"]
    scene = formed(scene, 2)
    assert where(scene) == (3, Phase.RUNNING, 1, 1)
    scene = joined(scene)
    assert where(scene) == (4, Phase.RESTARTING, 1, 2)
    assert where(formed(scene, 6)) == (4, Phase.RUNNING, 1, 2)
