"""The agent's side of the protocol, by the golden examples that the operator's tests use too."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard_agent.hang import Usual
from trainyard_agent.nccl_network import Network, Transport
from trainyard_agent.protocol import (
    AgentState,
    Order,
    StopProgress,
    parse_order,
    parse_refusal,
    parse_report_pause,
    parse_retry_delay,
    rank_report,
    report_request,
    sync_request,
)
from trainyard_agent.rank_records import FormedGroups
from trainyard_agent.report import MEASURED, RankState

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/agent_protocol.json").read_text(encoding="utf-8"))


def example_name(example: dict[str, Any]) -> str:
    return str(example["name"])


@pytest.mark.parametrize("example", GOLDEN["syncRequests"], ids=example_name)
def test_golden_sync_request(example: dict[str, Any]) -> None:
    data = dict(example["agent"])
    state, stop = AgentState(data.pop("state")), data.pop("stop", None)
    failure = tuple(data.pop("failure")) if "failure" in data else None
    made = sync_request(state=state, stop=StopProgress(**stop) if stop is not None else None, failure=failure, **data)
    assert made == example["body"]


@pytest.mark.parametrize("example", GOLDEN["reports"], ids=example_name)
def test_golden_report(example: dict[str, Any]) -> None:
    ranks = {}
    for rank, given in example["agent"]["ranks"].items():
        state, usual = RankState(**given["state"]), Usual(**given.get("usual", {}))
        ranks[int(rank)] = rank_report(
            state, usual, given.get("stack"), given.get("blocked"), given.get("warm_bytes", 0)
        )
    formed = example["agent"].get("formed")
    network = example["agent"].get("network")
    made = report_request(
        example["agent"]["attempt"],
        ranks,
        FormedGroups(*formed) if formed else None,
        Network(Transport(network[0]), network[1], "[0]mlx5_0:1/RoCE") if network else None,
        example["agent"].get("torch_processes"),
    )
    assert made == example["body"]


@pytest.mark.parametrize("example", GOLDEN["syncAnswers"], ids=example_name)
def test_golden_order(example: dict[str, Any]) -> None:
    assert parse_order(example["body"]) == Order(**example["agent"])


@pytest.mark.parametrize("example", GOLDEN["invalidSyncAnswers"], ids=example_name)
def test_golden_invalid_order(example: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=example["error"]):
        parse_order(example["body"])


@pytest.mark.parametrize("example", GOLDEN["reportAnswers"], ids=example_name)
def test_golden_pause(example: dict[str, Any]) -> None:
    assert parse_report_pause(example["body"]) == example["agent"]


@pytest.mark.parametrize("example", GOLDEN["refusals"], ids=example_name)
def test_golden_refusal(example: dict[str, Any]) -> None:
    reason, text = parse_refusal(example["status"], example["body"])
    assert (reason, text) == (example["agent"]["reason"], example["agent"]["text"])
    assert parse_retry_delay(example["body"]) == example["agent"].get("after", 0.0)


def test_golden_report_has_each_measurement() -> None:
    bodies = [rank for example in GOLDEN["reports"] for rank in example["body"]["ranks"].values()]
    found = {name for rank in bodies for name in rank.get("measured", {})}
    assert found == {*MEASURED, "warm_bytes"}


@pytest.mark.parametrize(
    "answer",
    [
        {"attempt": float("inf")},
        {"attempt": float("nan")},
        {"attempt": 2, "environment": {"A": "\ud800"}},
    ],
)
def test_answer_outside_json_is_rejected(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_order(answer)
