"""The coordinator's address and the token in a worker's pod."""

from typing import Any

import pytest

from tests.support.worker_pods import container, worker
from trainyard.frameworks.agent_wrapper import AgentImage
from trainyard.frameworks.coordinator_endpoint import CoordinatorEndpoint
from trainyard.frameworks.manifests import worker_pod
from trainyard.frameworks.worker_spec import Worker

CONTACT = CoordinatorEndpoint("https://trainyard-coordinator.trainyard-system.svc:8443", "-----BEGIN …")
SOURCE = AgentImage("operator:1")
TRAIN = container(command=["python", "train.py"])


def spec(
    made: Worker, source: AgentImage | None = SOURCE, contact: CoordinatorEndpoint | None = CONTACT
) -> dict[str, Any]:
    found: dict[str, Any] = worker_pod(made, source, contact)["spec"]
    return found


def variables(pod: dict[str, Any], number: int = 0) -> dict[str, str]:
    return {v["name"]: v["value"] for v in pod["containers"][number]["env"] if "COORDINATOR" in v["name"]}


def test_only_main_container_gets_coordinator_and_token() -> None:
    pod = spec(worker(TRAIN, container("sidecar")))
    assert variables(pod) == {
        "TRAINYARD_COORDINATOR": CONTACT.url,
        "TRAINYARD_COORDINATOR_CA": CONTACT.authority,
    }
    (volume,) = [v for v in pod["volumes"] if v["name"] == "trainyard-token"]
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"] == {"audience": "trainyard", "expirationSeconds": 3600, "path": "token"}
    main, sidecar = pod["containers"]
    (mount,) = [m for m in main["volumeMounts"] if m["name"] == "trainyard-token"]
    assert {"name": "TRAINYARD_TOKEN_FILE", "value": f"{mount['mountPath']}/token"} in main["env"]
    assert mount["readOnly"] is True
    assert variables(pod, 1) == {}
    assert "trainyard-token" not in {m["name"] for m in sidecar["volumeMounts"]}


def test_no_authority_sets_no_variable() -> None:
    pod = spec(worker(TRAIN), contact=CoordinatorEndpoint(CONTACT.url))
    assert variables(pod) == {"TRAINYARD_COORDINATOR": CONTACT.url}


def test_agent_of_the_image_gets_the_coordinator() -> None:
    pod = spec(worker(container(command=["trainyard-agent", "--", "python", "t.py"])), source=None)
    assert variables(pod)


@pytest.mark.parametrize(
    ("made", "source", "contact"),
    [
        (worker(TRAIN), SOURCE, None),
        (worker(TRAIN), None, CONTACT),
        (worker(container()), SOURCE, CONTACT),
        (worker(TRAIN, recovery={"agent": "none"}), SOURCE, CONTACT),
    ],
)
def test_no_token_without_agent_or_coordinator(
    made: Worker, source: AgentImage | None, contact: CoordinatorEndpoint | None
) -> None:
    pod = spec(made, source, contact)
    assert variables(pod) == {}
    assert "trainyard-token" not in {v["name"] for v in pod["volumes"]}


@pytest.mark.parametrize(
    "own",
    [
        {"env": [{"name": "TRAINYARD_COORDINATOR", "value": ""}]},
        {"volumeMounts": [{"name": "trainyard-token", "mountPath": "/mine"}]},
    ],
)
def test_users_own_values_are_kept(own: dict[str, Any]) -> None:
    made = worker(
        {**TRAIN, **own},
        pod={"volumes": [{"name": "trainyard-token", "emptyDir": {}}]} if "volumeMounts" in own else {},
    )
    pod = spec(made)
    assert sum(v["name"] == "TRAINYARD_COORDINATOR" for v in pod["containers"][0]["env"]) == ("env" in own)
    assert not [v for v in pod["volumes"] if "projected" in v]


def test_agent_waits_for_the_order_of_ranks() -> None:
    waits = {"name": "TRAINYARD_RENDEZVOUS", "value": "wait"}
    pod = worker_pod(worker(TRAIN), SOURCE, CONTACT, orders_ranks=True)
    assert waits in pod["spec"]["containers"][0]["env"]
    assert pod["metadata"]["annotations"]["trainyard.dev/rank-order"] == "placement"
    other = worker_pod(worker(TRAIN), SOURCE, CONTACT)
    assert waits not in other["spec"]["containers"][0]["env"]
    assert "trainyard.dev/rank-order" not in other["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("made", "source", "contact"),
    [
        (worker(TRAIN), SOURCE, None),
        (worker(TRAIN), None, CONTACT),
        (worker(TRAIN, container("trainyard-agent")), SOURCE, CONTACT),
        (worker(container(command=["trainyard-agent", "--", "python", "t.py"])), None, CONTACT),
    ],
    ids=["no coordinator", "no agent", "the name is taken", "an agent of the image"],
)
def test_ranks_need_the_operators_agent_to_wait(
    made: Worker, source: AgentImage | None, contact: CoordinatorEndpoint | None
) -> None:
    pod = worker_pod(made, source, contact, orders_ranks=True)
    assert "trainyard.dev/rank-order" not in pod["metadata"]["annotations"]
