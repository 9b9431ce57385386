"""The restart rules of worker pods."""

from typing import Any

import pytest

from tests.support.worker_pods import container, worker
from trainyard.domain.state.observe import is_restartable
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.restart_rules import RestartAction, supported_actions, with_restart_rule

ALL, ONE = RestartAction.ALL, RestartAction.CONTAINER
TRAIN = container(command=["python", "train.py"])


CONTACT = CoordinatorEndpoint("https://trainyard:8443")


def made(*containers: dict[str, Any], contact: CoordinatorEndpoint | None = CONTACT, **more: Any) -> Any:
    return worker_pod(worker(*containers, **more), AgentImage("operator:1"), contact)


@pytest.mark.parametrize(
    ("pod", "what"),
    [
        pytest.param(made(TRAIN), (ONE,), id="by itself"),
        pytest.param(made(TRAIN, container("logs")), (ALL, ONE), id="beside another"),
        pytest.param(
            made(TRAIN, pod={"initContainers": [{**container("tcpxo"), "restartPolicy": "Always"}]}),
            (ALL, ONE),
            id="beside a sidecar",
        ),
        pytest.param(made(TRAIN, pod={"initContainers": [container("fetch")]}), (ONE,), id="after another"),
        pytest.param(made(TRAIN, contact=None), (), id="no agent would receive it"),
        pytest.param(made(container()), (), id="without an agent"),
        pytest.param(made({**TRAIN, "restartPolicy": "OnFailure"}), (), id="the user has said how"),
        pytest.param(made({**TRAIN, "restartPolicyRules": [{"action": "Restart"}]}), (), id="the user has a rule"),
    ],
)
def test_supported_restart_actions(pod: dict[str, Any], what: tuple[RestartAction, ...]) -> None:
    assert tuple(supported_actions(pod["spec"])) == what


@pytest.mark.parametrize("what", RestartAction)
def test_restart_rule_matches_one_exit_code(what: RestartAction) -> None:
    pod = made(TRAIN, container("logs"))
    ruled = with_restart_rule(pod, what)
    main, other = ruled["spec"]["containers"]
    assert main["restartPolicyRules"] == [{"action": what, "exitCodes": {"operator": "In", "values": [88]}}]
    assert (main["restartPolicy"], other, pod == ruled) == ("Never", pod["spec"]["containers"][1], False)
    assert (is_restartable(ruled), is_restartable(pod)) == (True, False)
