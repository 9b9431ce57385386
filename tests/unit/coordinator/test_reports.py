"""The schema of reports, and the messages for invalid ones."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from trainyard.api.agent_protocol import (
    MAX_BODY_BYTES,
    MeasuredReport,
    Part,
    Refusal,
    Report,
    ReportAnswer,
    SyncAnswer,
    SyncRequest,
)
from trainyard.api.progress import MeasuredProgress
from trainyard.api.spec import MAX_PROCESSES_PER_REPLICA
from trainyard.coordinator.rejections import STATUS, RefusedError, RejectionReason
from trainyard.coordinator.reports import max_report_bytes, read
from trainyard_agent.protocol import FRAME_CHARACTERS, FRAMES
from trainyard_agent.report import MEASURED

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/agent_protocol.json").read_text(encoding="utf-8"))


def named(example: Any) -> str:
    return str(example["name"])


@pytest.mark.parametrize("example", GOLDEN["syncRequests"], ids=named)
def test_golden_sync_request_is_read(example: dict[str, Any]) -> None:
    request = read(SyncRequest, json.dumps(example["body"]).encode())
    dumped = {"attempt": request.attempt, "state": request.state, "prepared": request.prepared}
    dumped |= {"idle": request.idle, "stacks": request.stacks}
    assert dumped == {
        "prepared": True,
        "idle": False,
        "stacks": None,
        **{name: example["body"][name] for name in dumped if name in example["body"]},
    }
    assert (request.failure and request.failure.model_dump()) == example["body"].get("failure")
    assert (request.leave and asdict(request.leave)) == example["body"].get("leave")


@pytest.mark.parametrize("example", GOLDEN["newerSyncRequests"], ids=named)
def test_golden_newer_request_is_read(example: dict[str, Any]) -> None:
    request = read(SyncRequest, example["body"].encode())
    assert request.leave is not None
    assert request.leave.asked


@pytest.mark.parametrize("example", GOLDEN["reports"], ids=named)
def test_golden_report_is_read(example: dict[str, Any]) -> None:
    report = read(Report, json.dumps(example["body"]).encode())
    assert report.model_dump(exclude_unset=True) == example["body"]


@pytest.mark.parametrize(
    ("kind", "example"),
    [(SyncRequest, each) for each in GOLDEN["invalidSyncRequests"]]
    + [(Report, each) for each in GOLDEN["invalidReports"]],
    ids=lambda given: given["name"] if isinstance(given, dict) else given.__name__,
)
def test_golden_invalid_request_is_refused(kind: type[Part], example: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        read(kind, example["body"].encode())
    assert (refused.value.reason, refused.value.message.startswith(example["message"])) == (
        RejectionReason.MALFORMED,
        True,
    )


@pytest.mark.parametrize("example", GOLDEN["syncAnswers"], ids=named)
def test_golden_sync_answer_is_written(example: dict[str, Any]) -> None:
    assert SyncAnswer(**example["body"]).body() == example["body"]


@pytest.mark.parametrize("example", GOLDEN["refusals"][:5], ids=named)
def test_golden_refusal_is_written(example: dict[str, Any]) -> None:
    reason = RejectionReason(example["body"]["reason"])
    refusal = Refusal(reason=reason, message=example["body"]["message"], after=example["body"].get("after"))
    assert (refusal.body(), STATUS[reason]) == (example["body"], example["status"])


def test_golden_report_answer_is_written() -> None:
    example = GOLDEN["reportAnswers"][0]
    assert ReportAnswer(**example["body"]).model_dump() == example["body"]


def test_complete_report() -> None:
    rank = {
        "step": 120,
        "phase": "train",
        "total": 500,
        "loss": 0.31,
        "seconds": 0.2,
        "own": 0.1,
        "first": 9,
        "stack": ["a.py:3 in f"],
        "blocked": "stopped",
    }
    rank["measured"] = {
        "samples_per_second": 512.5,
        "tokens_per_second": 65536.0,
        "mfu": 0.41,
        "grad_norm": 1.5,
        "communication_share": 0.25,
        "data_share": 0.0,
        "checkpoint_share": 0.01,
        "memory_bytes": 8e9,
        "gemm_seconds": 0.08,
        "warm_bytes": 3e8,
        "checkpoint_step": 100.0,
        "checkpoint_seconds": 4.5,
    }
    report = read(Report, json.dumps({"attempt": 2, "ranks": {"4": rank, "5": {"phase": "start"}}}).encode())
    assert report.ranks["4"].model_dump() == rank
    assert (report.attempt, report.ranks["5"].step) == (2, None)


def test_unknown_fields_are_ignored() -> None:
    assert (
        read(Report, b'{"attempt": 1, "ranks": {"0": {"step": 1, "mood": "good"}}, "version": 9}').ranks["0"].step == 1
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "the body"),
        (b"\xff\xfe", "the body"),
        (b"[" * 100_000, "the body"),
        (b"[]", "the body"),
        (b"{}", "attempt"),
        (b'{"attempt": 0, "ranks": {}}', "attempt"),
        (b'{"attempt": 1e300, "ranks": {}}', "attempt"),
        (b'{"attempt": "1", "ranks": {}}', "attempt"),
        (b'{"attempt": 1, "ranks": []}', "ranks"),
        (b'{"attempt": 1, "ranks": {"-1": {}}}', "ranks.-1"),
        (b'{"attempt": 1, "ranks": {"01": {}}}', "ranks.01"),
        (b'{"attempt": 1, "ranks": {"999999999": {}}}', "ranks.999999999"),
        (b'{"attempt": 1, "ranks": {"0": {"step": -1}}}', "ranks.0.step"),
        (b'{"attempt": 1, "ranks": {"0": {"step": NaN}}}', "ranks.0.step"),
        (b'{"attempt": 1, "ranks": {"0": {"step": 1.5}}}', "ranks.0.step"),
        (b'{"attempt": 1, "ranks": {"0": {"step": true}}}', "ranks.0.step"),
        (b'{"attempt": 1, "ranks": {"0": {"step": 99999999999999999999}}}', "ranks.0.step"),
        (b'{"attempt": 1, "ranks": {"0": {"loss": NaN}}}', "ranks.0.loss"),
        (b'{"attempt": 1, "ranks": {"0": {"loss": Infinity}}}', "ranks.0.loss"),
        (b'{"attempt": 1, "ranks": {"0": {"loss": 1e999}}}', "ranks.0.loss"),
        (b'{"attempt": 1, "ranks": {"0": {"loss": "0.5"}}}', "ranks.0.loss"),
        (b'{"attempt": 1, "ranks": {"0": {"seconds": -0.1}}}', "ranks.0.seconds"),
        (b'{"attempt": 1, "ranks": {"0": {"own": -0.1}}}', "ranks.0.own"),
        (b'{"attempt": 1, "ranks": {"0": {"own": NaN}}}', "ranks.0.own"),
        (b'{"attempt": 1, "ranks": {"0": {"own": "0.1"}}}', "ranks.0.own"),
        (b'{"attempt": 1, "ranks": {"0": {"measured": {"mfu": -0.1}}}}', "ranks.0.measured.mfu"),
        (b'{"attempt": 1, "ranks": {"0": {"measured": {"mfu": NaN}}}}', "ranks.0.measured.mfu"),
        (b'{"attempt": 1, "ranks": {"0": {"measured": {"tokens_per_second": 1e200}}}}', "ranks.0.measured.tokens_per"),
        (b'{"attempt": 1, "ranks": {"0": {"measured": 0.5}}}', "ranks.0.measured"),
        (b'{"attempt": 1, "ranks": {"0": {"phase": "lunch"}}}', "ranks.0.phase"),
        (b'{"attempt": 1, "ranks": {"0": {"first": -1}}}', "ranks.0.first"),
        (b'{"attempt": 1, "ranks": {"0": {"stack": "a.py:3 in f"}}}', "ranks.0.stack"),
        (b'{"attempt": 1, "ranks": {"0": {"stack": [3]}}}', "ranks.0.stack.0"),
        (b'{"attempt": 1, "ranks": {"0": {"stack": ["' + b"x" * 257 + b'"]}}}', "ranks.0.stack.0"),
        (b'{"attempt": 1, "ranks": {"0": {"stack": ["a","a","a","a","a","a","a","a","a"]}}}', "ranks.0.stack"),
        (b'{"attempt": 1, "ranks": {"' + b"x" * 10_000 + b'": {}}}', "ranks." + "x" * 64),
    ],
)
def test_invalid_field_is_named_in_the_rejection(body: bytes, field: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read(Report, body)
    assert refused.value.reason is RejectionReason.MALFORMED
    assert refused.value.message.startswith(field)
    assert len(refused.value.message) < 500


def test_agent_coordinator_and_status_know_the_same_measurements() -> None:
    """Only the agent reports what a warm start needs; programs do not."""
    names = [*MeasuredProgress.model_fields, "checkpoint_step", "checkpoint_seconds"]
    assert {*MEASURED, "warm_bytes"} == {*names}
    assert [*MeasuredReport.model_fields] == names


def test_number_of_ranks_is_limited() -> None:
    ranks = {str(number): {"step": 1} for number in range(MAX_PROCESSES_PER_REPLICA + 1)}
    with pytest.raises(RefusedError, match="ranks: Dictionary should have at most 1024 items"):
        read(Report, json.dumps({"attempt": 1, "ranks": ranks}).encode(), 2 * MAX_PROCESSES_PER_REPLICA)


@pytest.mark.parametrize("name", ['"{0}": 1', '"a{0}": 1', '"0": 1'], ids=["wrong values", "wrong names", "one name"])
def test_large_wrong_report_never_reaches_pydantic(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    body = f'{{"attempt": 1, "ranks": {{{", ".join(name.format(n) for n in range(20_000))}}}}}'

    def validate(*_: object) -> Report:
        raise AssertionError("validated")

    monkeypatch.setattr(Report, "model_validate_json", validate)
    with pytest.raises(RefusedError, match="more than 64 members"):
        read(Report, body.encode(), 8)


def test_many_errors_are_counted_and_not_built() -> None:
    ranks = {str(number): {"step": -1, "total": -1, "first": -1} for number in range(30)}
    with pytest.raises(RefusedError, match="the body: 90 values are wrong"):
        read(Report, json.dumps({"attempt": 1, "ranks": ranks}).encode(), 30)


@given(st.integers(min_value=1, max_value=MAX_PROCESSES_PER_REPLICA))
def test_size_limit_grows_with_the_ranks(processes: int) -> None:
    frames = ["\N{LATIN SMALL LETTER E WITH ACUTE}" * FRAME_CHARACTERS] * FRAMES
    measured = dict.fromkeys(MeasuredReport.model_fields, 1.2345678901234567e99)
    rank = {"step": 2**53, "phase": "evaluate", "measured": measured, "stack": frames, "loss": 1.2345678901234567e99}
    one = len(json.dumps({"1000": rank}))
    assert min(MAX_BODY_BYTES, processes * one) <= max_report_bytes(processes) <= MAX_BODY_BYTES
