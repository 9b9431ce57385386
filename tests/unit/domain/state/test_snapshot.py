"""Facts that a snapshot derives from its parts."""

from dataclasses import replace

from tests.support.jobs import ago, job


def test_disconnected_agents_do_not_count_as_connected() -> None:
    scene = job(2).running().with_agents()
    uids = [pod.uid for pod in scene.pods]
    agents = dict(scene.agents or {})
    agents[uids[0]] = replace(agents[uids[0]], since=ago(900), left_at=ago(5))
    agents[uids[1]] = replace(agents[uids[1]], since=ago(60))
    assert replace(scene, agents=agents).snapshot.agents_connected_since == ago(60)
