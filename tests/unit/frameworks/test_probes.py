"""Probes of the main container: they wait while the agent waits for the group."""

import json
from typing import Any

import pytest

from tests.support.worker_pods import container, worker
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.frameworks.manifests import worker_pod

Json = dict[str, Any]
AGENT, ENDPOINT = AgentImage("operator:1"), CoordinatorEndpoint("https://operator:9443")
SCRIPT = ["/bin/sh", "/run/trainyard/probe"]
EXEC: Json = {"exec": {"command": ["test", "-e", "/data/$(RANK)"]}}


def main_of(
    *, agent: AgentImage | None = AGENT, endpoint: CoordinatorEndpoint | None = ENDPOINT, **fields: Any
) -> Json:
    made = worker(container(command=["python", "train.py"], **fields), container("side", livenessProbe=EXEC))
    pod = worker_pod(made, agent, endpoint)
    assert pod["spec"]["containers"][1]["livenessProbe"] == EXEC
    main: Json = pod["spec"]["containers"][0]
    return main


def delay_of(main: Json) -> str | None:
    return {each["name"]: each.get("value") for each in main["env"]}.get("TRAINYARD_PROBE_DELAY_SECONDS")


def test_command_runs_after_the_script() -> None:
    probe = {**EXEC, "periodSeconds": 5, "failureThreshold": 2, "timeoutSeconds": 3, "initialDelaySeconds": 20}
    main = main_of(livenessProbe=probe, readinessProbe=EXEC)
    assert main["livenessProbe"] == {**probe, "exec": {"command": [*SCRIPT, "--", *EXEC["exec"]["command"]]}}
    assert main["readinessProbe"] == EXEC
    assert delay_of(main) == "20"


@pytest.mark.parametrize(
    ("probe", "request_"),
    [
        (
            {
                "httpGet": {
                    "port": "web",
                    "path": "/live?$(x)",
                    "scheme": "HTTPS",
                    "httpHeaders": [{"name": "A", "value": "b"}],
                }
            },
            {
                "kind": "http",
                "port": 8080,
                "timeout": 1,
                "path": "/live?$$(x)",
                "scheme": "HTTPS",
                "headers": [{"name": "A", "value": "b"}],
            },
        ),
        (
            {"tcpSocket": {"port": 9, "host": "h"}, "timeoutSeconds": 4},
            {"kind": "tcp", "port": 9, "timeout": 4, "host": "h"},
        ),
        ({"grpc": {"port": 9, "service": "s"}}, {"kind": "grpc", "port": 9, "timeout": 1, "service": "s"}),
        ({"tcpSocket": {"port": "81"}}, {"kind": "tcp", "port": 81, "timeout": 1}),
    ],
)
def test_request_is_made_by_the_agent(probe: Json, request_: Json) -> None:
    made = main_of(startupProbe=probe, ports=[{"name": "web", "containerPort": 8080}])["startupProbe"]
    assert made.keys() == {"exec", "timeoutSeconds"}
    *words, text = made["exec"]["command"]
    assert (words, json.loads(text)) == (SCRIPT, request_)
    assert made["timeoutSeconds"] == request_["timeout"] + 5


@pytest.mark.parametrize(
    ("probes", "delay"),
    [
        ({"livenessProbe": EXEC}, "0"),
        ({"startupProbe": EXEC}, "30"),
        ({"startupProbe": {**EXEC, "initialDelaySeconds": 5, "periodSeconds": 2, "failureThreshold": 60}}, "125"),
        ({"livenessProbe": {**EXEC, "initialDelaySeconds": 90}, "startupProbe": EXEC}, "90"),
        ({"readinessProbe": EXEC}, None),
    ],
)
def test_delay_is_that_of_a_new_container(probes: Json, delay: str | None) -> None:
    assert delay_of(main_of(**probes)) == delay


def test_delay_of_user_is_kept() -> None:
    own = [{"name": "TRAINYARD_PROBE_DELAY_SECONDS", "value": "7"}]
    made = main_of(livenessProbe=EXEC, env=own)
    assert [each for each in made["env"] if each["name"] == own[0]["name"]] == own


@pytest.mark.parametrize("probe", [{}, {"httpGet": {"port": "unknown"}}, {"custom": {}}])
def test_unknown_check_stays(probe: Json) -> None:
    assert main_of(livenessProbe=probe).get("livenessProbe") == probe


@pytest.mark.parametrize(("agent", "endpoint"), [(None, ENDPOINT), (AGENT, None), (None, None)])
def test_probe_stays_where_no_worker_waits(agent: AgentImage | None, endpoint: CoordinatorEndpoint | None) -> None:
    assert main_of(agent=agent, endpoint=endpoint, livenessProbe=EXEC)["livenessProbe"] == EXEC
