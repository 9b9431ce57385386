"""The main container of a worker's pod is the template's, wherever admission puts other containers, and it alone decides."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.jobs import NOW, SUPERVISED, ago, job, worker as worker_of_group
from tests.support.worker_pods import container, worker
from tests.unit.domain.observing import AT, SOME_TIME, Json, condition, ended
from trainyard.api.agent_protocol import AgentState
from trainyard.api.status import Phase
from trainyard.domain.decisions import DeletePod
from trainyard.domain.plan import plan
from trainyard.domain.scaling.group_size import has_failed
from trainyard.domain.state.observe import is_restartable, main_container, pod_view
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import AgentView, State
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.restart_rules import RestartAction, with_restart_rule

RUNNING: Json = {"running": {"startedAt": SOME_TIME}}
PROXY: Json = {"name": "proxy", "image": "proxy:1", "env": [{"name": "POD", "value": "x"}]}
MAIN_ANNOTATION, DEFAULT_ANNOTATION = "trainyard.dev/main-container", "kubectl.kubernetes.io/default-container"


def admitted(*, first: bool = True, main: Json | None = None, proxy: Json | None = None, **status: Any) -> Json:
    """Return a pod of the operator into which admission put a proxy, with the states of both containers."""
    pod = worker_pod(worker(container("trainer", command=["python"]), container("helper")))
    pod["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    pod["spec"]["containers"].insert(0 if first else 2, PROXY)
    states = {"proxy": proxy or RUNNING, "trainer": main or RUNNING, "helper": RUNNING}
    observed = [{"name": name, "state": each, "ready": "running" in each} for name, each in states.items()]
    pod["status"] = {"phase": "Running", "containerStatuses": observed, **status}
    return pod


def without_annotations(pod: Json, **instead: str) -> Json:
    return {**pod, "metadata": {**pod["metadata"], "annotations": instead}}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("annotations", ["kept", "removed", "replaced", "of no container"])
def test_main_container_is_found_by_name(annotations: str, *, first: bool) -> None:
    pod = admitted(first=first)
    other: dict[str, dict[str, str]] = {
        "removed": {},
        "replaced": {DEFAULT_ANNOTATION: "proxy"},
        "of no container": {MAIN_ANNOTATION: "nobody"},
    }
    if annotations in other:
        pod = without_annotations(pod, **other[annotations])
    assert main_container(pod)["name"] == "trainer"


def test_reordered_template_containers_keep_their_roles() -> None:
    pod = admitted()
    pod["spec"]["containers"].reverse()
    assert main_container(pod)["name"] == "trainer"


def test_template_chooses_container_of_kubectl_only() -> None:
    pod = worker_pod(
        worker(container("trainer"), metadata={"annotations": {DEFAULT_ANNOTATION: "b", MAIN_ANNOTATION: "b"}})
    )
    assert pod["metadata"]["annotations"].items() >= {DEFAULT_ANNOTATION: "b", MAIN_ANNOTATION: "trainer"}.items()
    plain = worker_pod(worker(container("trainer")))
    assert plain["metadata"]["annotations"][DEFAULT_ANNOTATION] == "trainer"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("main", "proxy", "expected"),
    [
        pytest.param(RUNNING, ended(0, "Completed"), State.RUNNING, id="a foreign container completes"),
        pytest.param(RUNNING, ended(1), State.RUNNING, id="a foreign container fails"),
        pytest.param(RUNNING, ended(137, "OOMKilled"), State.RUNNING, id="a foreign container runs out of memory"),
        pytest.param(RUNNING, ended(88), State.RUNNING, id="a foreign container exits with the code of a restart"),
        pytest.param(ended(0, "Completed"), RUNNING, State.SUCCEEDED, id="the program completes, the other never ends"),
        pytest.param(ended(3), RUNNING, State.FAILED, id="the program fails, the other never ends"),
        pytest.param(
            {"waiting": {"reason": "PodInitializing"}}, ended(0), State.STARTING, id="the program has yet to start"
        ),
    ],
)
def test_main_container_alone_decides(main: Json, proxy: Json, expected: State, *, first: bool) -> None:
    raw = admitted(first=first, main=main, proxy=proxy)
    raw["spec"]["nodeName"] = "node1"
    assert pod_view(raw).state is expected
    assert pod_view(raw).has_stopped is (expected in {State.SUCCEEDED, State.FAILED})


def test_program_succeeds_though_another_container_failed() -> None:
    raw = admitted(main=ended(0, "Completed"), proxy=ended(1), phase="Failed")
    assert (pod_view(raw).state, pod_view(raw).exit) == (State.SUCCEEDED, Exit(AT, 0, "Completed", ""))


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        ({"status": "True"}, True),
        ({"status": "False", "reason": "ContainersNotReady"}, True),
        ({"status": "False"}, False),
        ({"status": "False", "reason": "ReadinessGatesNotReady"}, False),
    ],
)
def test_ended_proxy_leaves_its_worker_ready(ready: Json, *, expected: bool) -> None:
    raw = admitted(proxy=ended(0), conditions=[condition("Ready") | ready])
    assert pod_view(raw).ready is expected


def test_worker_is_not_ready_without_its_program() -> None:
    not_ready = condition("Ready", "False", reason="ContainersNotReady")
    assert not pod_view(admitted(main={"waiting": {}}, conditions=[not_ready])).ready


def test_restart_rule_is_seen_behind_a_proxy() -> None:
    ruled = with_restart_rule(worker_pod(worker(container("trainer"))), RestartAction.CONTAINER)
    ruled["spec"]["containers"].insert(0, PROXY)
    assert is_restartable(ruled)
    ruled["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    statuses = [{"name": "proxy", "state": RUNNING}, {"name": "trainer", "state": ended(88)}]
    view = pod_view({**ruled, "status": {"phase": "Running", "containerStatuses": statuses}})
    assert (view.restartable, view.exit, view.running) == (True, None, False)


def test_job_completes_and_its_proxies_are_removed() -> None:
    scene = job(2).running().succeeded(0, 1).pod(0, phase="Running", ended=False).pod(1, phase="Running", ended=False)
    decided = plan(scene.snapshot, NOW)
    assert decided.status.phase is Phase.COMPLETE
    after = plan(scene.with_status(conditions=decided.status.conditions, completion_time=NOW).snapshot, NOW)
    assert [action.name for action in after.actions if isinstance(action, DeletePod)] == [
        "train-worker-0-1",
        "train-worker-1-1",
    ]


def test_completed_worker_with_a_proxy_is_not_lost() -> None:
    """Its agent has left without a last word, and only its proxy still runs."""
    scene = job(3, template=SUPERVISED).running().with_agents().succeeded(1, seconds_ago=20)
    left = AgentView(1, AgentState.RUNNING, since=ago(200), left_at=ago(20))
    scene = replace(scene.pod(1, phase="Running", ended=False), agents={**(scene.agents or {}), "pod-1-1": left})
    assert plan(scene.snapshot, NOW).status.attempt == 1


def test_joining_worker_fails_though_its_proxy_runs() -> None:
    exited = worker_of_group(3, scheduled=True, phase="Running", exit=Exit(ago(1), 0, "Completed", ""))
    assert has_failed(exited)
