"""What the agent runs in a pod of a Flower federation, and what the state of a run means."""

import json
import tomllib

import pytest

from trainyard_agent.flower import FlowerNode, Run, Verdict, flower_node, runs, verdict
from trainyard_agent.ranks import SettingError

SERVER = {"TRAINYARD_FLOWER_START": "flower-superlink --port=29501"}
CLIENT = {
    "TRAINYARD_FLOWER_START": "flower-supernode --superlink=train-server-0.train:29501",
    "TRAINYARD_FLOWER_NODE_CONFIG": "partition-id=1 num-partitions=3",
}
COMMAND = ["flwr", "run", "/app"]
COMPLETED, FAILED = (Run("2", f"finished:{word}", "N/A") for word in ("completed", "failed"))


def node(environment: dict[str, str], options: str = "") -> FlowerNode:
    made = flower_node(COMMAND, {**environment, "TRAINYARD_FLOWER_OPTIONS": options})
    assert made is not None
    return made


def test_other_frameworks_have_no_node() -> None:
    assert flower_node(COMMAND, {"TRAINYARD_FLOWER_OPTIONS": "--insecure"}) is None


@pytest.mark.parametrize(("address", "host"), [("10.0.0.7", "0.0.0.0"), ("", "0.0.0.0"), ("fd00::7", "::")])  # noqa: S104 - compared
def test_server_listens_for_clients(address: str, host: str) -> None:
    made = node(SERVER)
    assert made.is_server
    assert made.words(address) == ["flower-superlink", "--port=29501", f"--host={host}", "--insecure"]
    assert made.command == COMMAND


@pytest.mark.parametrize(("address", "host"), [("10.0.0.7", "127.0.0.1"), ("fd00::7", "[::1]")])
def test_command_finds_superlink_of_its_pod(address: str, host: str) -> None:
    found = tomllib.loads(node(SERVER).connection(address))["superlink"]
    assert found == {"default": "trainyard", "trainyard": {"address": f"{host}:29501", "insecure": True}}


def test_client_joins_the_server() -> None:
    made = node(CLIENT)
    assert not made.is_server
    assert made.server_address == ("train-server-0.train", 29501)
    assert made.words("10.0.0.7") == [
        *CLIENT["TRAINYARD_FLOWER_START"].split(),
        "--insecure",
        "--node-config=partition-id=1 num-partitions=3",
    ]


@pytest.mark.parametrize("written", ["--node-config '{}'", "'--node-config={}'"])
def test_own_node_config_joins_that_of_the_operator(written: str) -> None:
    made = node(CLIENT, "--max-retries 3 " + written.format('data="/data" partition-id=7'))
    assert made.words("")[2:] == [
        "--insecure",
        "--max-retries",
        "3",
        '--node-config=num-partitions=3 data="/data" partition-id=7',
    ]


def test_server_takes_no_node_config_of_the_template() -> None:
    made = node(SERVER, """--node-config 'data="/data"' --database=/state/flower.db""")
    assert made.words("")[-2:] == ["--insecure", "--database=/state/flower.db"]


def test_own_options_come_last() -> None:
    made = node(SERVER, "--port 8000 --host=127.0.0.1")
    assert made.words("")[-3:] == ["--port", "8000", "--host=127.0.0.1"]
    assert made.port == 8000
    assert node(CLIENT, "--superlink elsewhere:1").server_address == ("elsewhere", 1)


def test_certificates_turn_tls_on() -> None:
    made = node(SERVER, "--ssl-certfile=/tls/tls.crt --ssl-keyfile=/tls/tls.key --ssl-ca-certfile /tls/ca.crt")
    assert "--insecure" not in made.words("")
    connection = tomllib.loads(made.connection(""))["superlink"]["trainyard"]
    assert connection == {"address": "127.0.0.1:29501", "root-certificates": "/tls/ca.crt"}
    assert "--insecure" not in node(CLIENT, "--root-certificates /tls/ca.crt").words("")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"TRAINYARD_FLOWER_START": "sh -c true"}, "must start with flower-superlink or flower-supernode, got 'sh'"),
        ({"TRAINYARD_FLOWER_OPTIONS": "--host='"}, "TRAINYARD_FLOWER_OPTIONS must be options of flower-superlink"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, str], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        flower_node(COMMAND, {**SERVER, **wrong})


def test_runs_as_flower_prints_them() -> None:
    listed = {"run-id": "7", "status": "finished:failed", "status-details": "no data", "elapsed": 1.5}
    output = json.dumps({"success": True, "runs": [listed]}).encode()
    assert runs(output) == [Run("7", "finished:failed", "no data")]


@pytest.mark.parametrize(
    "output",
    [b"", b"no JSON", b"[]", b'{"success": false, "error-message": "no SuperLink"}', b'{"success": true}'],
)
def test_unreachable_superlink_has_no_runs(output: bytes) -> None:
    assert runs(output) is None


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param([COMPLETED], Verdict(is_final=True), id="completed"),
        pytest.param([Run("2", "running", "N/A")], Verdict(is_final=False), id="goes on"),
        pytest.param([COMPLETED, Run("3", "pending", "N/A")], Verdict(is_final=False), id="one of two goes on"),
        pytest.param(
            [FAILED, Run("3", "running", "N/A")],
            Verdict(is_final=True, failure="run 2 of Flower is finished:failed: N/A"),
            id="one of two has failed",
        ),
        pytest.param(
            [Run("3", "finished:stopped", "by hand")],
            Verdict(is_final=True, failure="run 3 of Flower is finished:stopped: by hand"),
            id="stopped",
        ),
    ],
)
def test_state_of_the_run_decides(found: list[Run], expected: Verdict) -> None:
    before = Run("1", "finished:failed", "of the last attempt")
    assert verdict([before, *found], {"1"}) == expected


def test_command_without_a_run_fails() -> None:
    found = verdict([FAILED], {"2"})
    assert found.is_final
    assert found.failure is not None
    assert "started no run" in found.failure
