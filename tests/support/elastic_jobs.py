"""Reconcile elastic jobs in tests: their groups lose capacity, shrink, and scale up again."""

from dataclasses import replace
from typing import Any

from tests.support import reconciles
from tests.support.jobs import NOW, Scene
from tests.support.reconciles import act
from trainyard.api.agent_protocol import AgentState
from trainyard.domain.state.worker_views import AgentView, PodIssue

NO_CAPACITY = PodIssue("Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu")
ELASTIC = {"maxReplicas": 6, "shrinkAfterSeconds": 60, "growAfterSeconds": 30}


def elastic_running(workers: int, **fields: Any) -> Scene:
    """Return an elastic job with so many workers, all running with their agents."""
    return reconciles.running(workers, elastic={**ELASTIC, **fields})


def change_pod(scene: Scene, index: int, agent: AgentView | None = None, **fields: Any) -> Scene:
    """Change fields of a worker's newest pod, and the view of its agent."""
    newest = max(pod.attempt for pod in scene.pods if pod.index == index)
    uid = f"pod-{index}-{newest}"
    pods = tuple(replace(pod, **fields) if pod.uid == uid else pod for pod in scene.pods)
    agents = {**(scene.agents or {}), **({uid: agent} if agent else {})}
    return replace(scene, pods=pods, agents=agents)


def scheduled(scene: Scene, index: int, *, waiting: bool = True) -> Scene:
    """Schedule and start a worker's newest pod; its agent waits for the others."""
    attempt = max(pod.attempt for pod in scene.pods if pod.index == index)
    agent = AgentView(attempt, AgentState.WAITING if waiting else AgentState.RUNNING, since=NOW, reported_at=NOW)
    runs = {"scheduled": True, "phase": "Running", "running": True, "ready": True, "node": "node9", "ip": "10.0.0.9"}
    return change_pod(scene, index, agent, issue=None, **runs)


def short_of_capacity(workers: int = 4, lost: int = 1, **fields: Any) -> Scene:
    """Return a job whose worker was disrupted, and whose new pod, of attempt 2, is unschedulable."""
    scene = elastic_running(workers, **fields).disrupted(lost)
    scene = act(change_pod(scene, lost, ended=True, phase="Failed"))
    assert scene.status.attempt == 2
    return change_pod(act(set_agents(scene)), lost, issue=NO_CAPACITY)


def set_agents(scene: Scene, state: AgentState = AgentState.WAITING) -> Scene:
    """Put all connected agents into the current attempt and this state."""
    agents = {
        uid: replace(agent, attempt=scene.status.attempt, state=state) for uid, agent in (scene.agents or {}).items()
    }
    return replace(scene, agents=agents)


def shrunk(**fields: Any) -> Scene:
    """Return a group of 4 that runs with 3 as attempt 3: worker 1 has taken over the node of the last one."""
    scene = act(act(short_of_capacity(**fields), 60), 60)
    scene = scheduled(scene, 1)
    scene = act(set_agents(scene), 61)
    assert scene.status.internal.rendezvous
    return act(set_agents(scene, AgentState.RUNNING), 61)


def scaling_up() -> Scene:
    """Three train, and three that are to join have pods since second 90."""
    return act(act(act(shrunk().with_spec(replicas=6), 62), 90), 90)


def joining_ready(scene: Scene, index: int, attempt: int = 1) -> Scene:
    """Start the pod of a joining worker; its agent waits."""
    uid = f"pod-{index}-{attempt}"
    pods = [
        replace(pod, scheduled=True, phase="Running", running=True, ready=True, node="node9", ip="10.0.0.9")
        if pod.uid == uid
        else pod
        for pod in scene.pods
    ]
    agent = AgentView(attempt, AgentState.WAITING, since=NOW, reported_at=NOW)
    return replace(scene, pods=tuple(pods), agents={**(scene.agents or {}), uid: agent})
