"""Termination messages, read by the examples that the agent's tests write."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.domain.state.termination import LINE_BYTES, Kind, Termination, headline, read

GOLDEN = json.loads((Path(__file__).parents[3] / "golden/termination_messages.json").read_text(encoding="utf-8"))
VALID = '{"trainyard":1,"kind":"failed","exitCode":1'


def named(example: dict[str, Any]) -> str:
    return str(example["name"])


def message_of(example: dict[str, Any]) -> str:
    """As the API server gives it, after the kubelet."""
    return example.get("message") or base64.b64decode(example.get("base64", "")).decode(errors="replace")


@pytest.mark.parametrize("example", [*GOLDEN["written"], *GOLDEN["read"]], ids=named)
def test_golden_message_is_read(example: dict[str, Any]) -> None:
    message = message_of(example)
    found = read(message)
    if example["fields"] is None:
        assert (found.data, found.text) == (None, message.strip())
    else:
        assert found.data is not None
        known = found.data.model_dump(mode="json", by_alias=True, exclude_unset=True)
        assert known == {"trainyard": 1, **example["fields"]}
        assert not found.text.startswith("{")


@pytest.mark.parametrize("example", GOLDEN["written"], ids=named)
def test_golden_headline(example: dict[str, Any]) -> None:
    found = read(example["message"])
    assert found.data is not None
    assert headline(found.data, found.text) == example["headline"]
    assert found.data.out_of_memory is example.get("outOfMemory", False)


def test_each_kind_has_an_example() -> None:
    assert {example["data"]["kind"] for example in GOLDEN["written"]} == {*Kind}


def test_each_field_has_an_example() -> None:
    fields = {name for example in GOLDEN["written"] for name in example["fields"]}
    assert {"trainyard", *fields} == {field.alias for field in Termination.model_fields.values()}


@pytest.mark.parametrize(
    "line",
    [
        f'{VALID},"mood":{"[" * 900}',
        f'{VALID},"mood":{"[" * 400}{"]" * 400}}}',
        f'{VALID},"mood":{"9" * 900}}}',
        f'{VALID},"exception":"{"x" * LINE_BYTES}"}}',
        f'{VALID},"mood":"{"x" * LINE_BYTES}"}}',
    ],
    ids=["open brackets", "brackets", "a number", "a long text", "a long line"],
)
def test_bombs_are_text(line: str) -> None:
    found = read(f"{line}\nlog")
    assert found.data is None or found.data.exit_code == 1
    assert found.text.endswith("log")


def test_oom_counts_for_thirty_seconds() -> None:
    for age, expected in ((0, True), (30, True), (31, False)):
        data = read(f'{VALID},"oomKills":1,"oomAgeSeconds":{age}}}').data
        assert data is not None
        assert data.out_of_memory is expected
    data = read(f'{VALID},"oomKills":1}}').data
    assert data is not None
    assert data.out_of_memory, "an age that is not known"
    data = read(f'{VALID},"oomKills":0,"oomAgeSeconds":0}}').data
    assert data is not None
    assert not data.out_of_memory


@pytest.mark.parametrize(("length", "is_data"), [(1024, True), (1025, False)])
def test_line_has_at_most_1024_bytes(length: int, *, is_data: bool) -> None:
    line = '{"trainyard":1,"kind":"failed"'.ljust(length - 1) + "}"
    assert (read(line).data is not None) is is_data


@pytest.mark.parametrize(("rank", "is_data"), [(999_999_999, True), (1_000_000_000, False)])
def test_rank_has_at_most_nine_digits(rank: int, *, is_data: bool) -> None:
    assert (read(f'{VALID},"rank":{rank}}}').data is not None) is is_data
