"""The agent's reports to the operator, for which training never waits."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.agents.credentials import certificate
from tests.support.polling import until
from tests.unit.agent.fake_operator import FakeOperator, credentials, serve_operator
from trainyard_agent import reporter
from trainyard_agent.coordinator import Coordinator
from trainyard_agent.errors import NoAnswerError
from trainyard_agent.hang import Usual
from trainyard_agent.nccl_network import Network, Transport
from trainyard_agent.rank_records import FormedGroups, Programs
from trainyard_agent.report import RankState
from trainyard_agent.reporter import Reporter


class Ranks:
    """States of ranks for a reporter, and the lines that the agent logs."""

    def __init__(self, **steps: int) -> None:
        self.states = {int(name[1:]): RankState(step, "train") for name, step in steps.items()}
        self.usual = {0: Usual(0.25)}
        self.warm = 0
        self.lines: list[str] = []
        self.polls = 0

    def poll(self) -> tuple[dict[int, RankState], dict[int, Usual]]:
        self.polls += 1
        return self.states, self.usual


@contextmanager
def reporting(variables: dict[str, str], ranks: Ranks) -> Iterator[Reporter]:
    with Reporter(variables, 3, ranks.poll, ranks.lines.append, lambda: ranks.warm) as made:
        yield made
    if made._thread is not None:
        made._thread.join(10)


@pytest.fixture(autouse=True)
def immediate_first_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "FIRST_REPORT_SECONDS", 0.02)


def test_progress_is_reported_with_pod_token(folder: Path, operator: FakeOperator) -> None:
    ranks = Ranks(r0=7, r1=8)
    ranks.usual = {0: Usual(0.25, 0.123456), 1: Usual()}
    with reporting(credentials(folder, operator.port), ranks):
        until(lambda: operator.reports, 10, "a report")
    reported = {"0": {"step": 7, "phase": "train", "seconds": 0.25, "own": 0.1235}, "1": {"step": 8, "phase": "train"}}
    assert operator.reports == [{"attempt": 3, "ranks": reported}]
    assert (operator.tokens, ranks.lines) == (["Bearer a.b.c"], [])


def test_warm_start_memory_is_reported_once(folder: Path, operator: FakeOperator) -> None:
    ranks = Ranks(r0=7, r1=8)
    ranks.warm = 300 << 20
    with reporting(credentials(folder, operator.port), ranks):
        until(lambda: operator.reports, 10, "a report")
    reported = operator.reports[0]["ranks"]
    assert (reported["0"]["measured"], "measured" in reported["1"]) == ({"warm_bytes": 300 << 20}, False)


def test_unchanged_progress_is_not_reported_again(folder: Path, operator: FakeOperator) -> None:
    ranks = Ranks(r0=7)
    with reporting(credentials(folder, operator.port), ranks):
        until(lambda: operator.reports, 10, "a report")
        before = ranks.polls
        until(lambda: ranks.polls > before + 3, 10, "more polls")
        assert len(operator.reports) == 1
        ranks.states = {0: RankState(8, "train")}
        until(lambda: len(operator.reports) == 2, 10, "the next report")


def test_groups_are_reported_once(folder: Path, operator: FakeOperator) -> None:
    ranks = Ranks()
    variables = credentials(folder, operator.port)
    with Reporter(variables, 3, ranks.poll, ranks.lines.append, programs=lambda: Programs(FormedGroups(1, 1))) as made:
        until(lambda: operator.reports, 10, "a report")
        before = ranks.polls
        until(lambda: ranks.polls > before + 3, 10, "more polls")
        made.finish()
    assert operator.reports == [{"attempt": 3, "ranks": {}, "groups": {"size": 1, "leaders": 1}}]


def test_network_is_reported_without_progress(folder: Path, operator: FakeOperator) -> None:
    variables, ranks = credentials(folder, operator.port), Ranks()
    taken = Network(Transport.SOCKETS, "Socket")
    with Reporter(variables, 3, ranks.poll, ranks.lines.append, network=lambda: taken):
        until(lambda: operator.reports, 10, "a report")
    assert operator.reports == [{"attempt": 3, "ranks": {}, "network": {"transport": "Sockets", "name": "Socket"}}]


def test_silent_ranks_are_not_reported(folder: Path, operator: FakeOperator) -> None:
    ranks = Ranks()
    with reporting(credentials(folder, operator.port), ranks) as made:
        until(lambda: ranks.polls > 3, 10, "some polls")
        made.finish()
    assert operator.reports == []


def test_last_step_is_reported_at_exit(folder: Path, operator: FakeOperator) -> None:
    ranks = Ranks(r0=7)
    operator.report_answer = 200, {"next": 60}
    with reporting(credentials(folder, operator.port), ranks) as made:
        until(lambda: operator.reports, 10, "a report")
        ranks.states = {0: RankState(90, "train", 90, 0.1)}
        made.finish()
        assert operator.reports[-1]["ranks"]["0"] == {
            "step": 90,
            "phase": "train",
            "total": 90,
            "loss": 0.1,
            "seconds": 0.25,
        }


def test_last_step_is_reported_despite_failures(folder: Path, operator: FakeOperator) -> None:
    ranks = Ranks(r0=7)
    operator.report_answer = 503, {"reason": "NotLeading", "message": "not the leader"}
    with reporting(credentials(folder, operator.port), ranks) as made:
        until(lambda: made._failures == 1, 10, "a report that is refused")
        ranks.states = {0: RankState(90, "train")}
        finishing = threading.Thread(target=made.finish)
        finishing.start()
        until(lambda: operator.reports[-1]["ranks"]["0"]["step"] == 90, 10, "the last report")
        before = len(operator.reports)
        operator.report_answer = 200, {"next": 60}
        until(lambda: len(operator.reports) > before, 10, "the next try")
        finishing.join(10)
        assert (finishing.is_alive(), made._failures, ranks.lines) == (False, 0, [])


def test_last_step_is_tried_three_times(folder: Path, operator: FakeOperator) -> None:
    ranks = Ranks(r0=7)
    operator.report_answer = 200, {"next": 60}
    with reporting(credentials(folder, operator.port), ranks) as made:
        until(lambda: operator.reports, 10, "a report")
        ranks.states = {0: RankState(90, "train")}
        operator.report_answer = 503, {"reason": "NotLeading", "message": "not the leader"}
        made.finish()
    assert len(operator.reports) == 1 + reporter.LOGGED_FAILURES
    assert "the last step is not reported" in ranks.lines[0]


def test_stacks_are_reported_immediately_and_truncated(folder: Path, operator: FakeOperator) -> None:
    operator.report_answer = 200, {"next": 60}
    with reporting(credentials(folder, operator.port), Ranks(r0=7, r1=7)) as made:
        until(lambda: operator.reports, 10, "a report")
        made.report_hang({0: ["a.py:1 in " + "x" * 300, "b", "c", "d", "e"]}, {1: "stopped"})
        until(lambda: len(operator.reports) == 2, 10, "the stacks")
    ranks = operator.reports[1]["ranks"]
    assert [len(frame) for frame in ranks["0"]["stack"]] == [200, 1, 1, 1]
    assert (ranks["1"]["blocked"], "stack" in ranks["1"], "blocked" in ranks["0"]) == ("stopped", False, False)


def test_values_outside_limits_are_omitted(folder: Path, operator: FakeOperator) -> None:
    ranks = Ranks()
    ranks.states = {0: RankState(2**60, "train", 2**60, float("nan")), 1: RankState(1, "train", None, 1e300)}
    with reporting(credentials(folder, operator.port), ranks):
        until(lambda: operator.reports, 10, "a report")
    reported = operator.reports[0]["ranks"]
    assert reported == {"0": {"phase": "train", "seconds": 0.25}, "1": {"step": 1, "phase": "train"}}


def test_program_measurements_replace_agent_measurements(folder: Path, operator: FakeOperator) -> None:
    ranks = Ranks()
    ranks.states = {
        0: RankState(7, "train", first=3, seconds=0.0123456, measured={"mfu": 0.41237, "tokens_per_second": 1e300}),
        1: RankState(7, "train", first=2**60, seconds=float("inf"), measured={"checkpoint_step": 2.0**60}),
        2: RankState(7, "train", measured={"checkpoint_step": 1_234_567.0, "checkpoint_seconds": 1.23456}),
    }
    with reporting(credentials(folder, operator.port), ranks):
        until(lambda: operator.reports, 10, "a report")
    step = {"step": 7, "phase": "train"}
    assert operator.reports[0]["ranks"] == {
        "0": {**step, "seconds": 0.01235, "first": 3, "measured": {"mfu": 0.4124}},
        "1": step,
        "2": {**step, "measured": {"checkpoint_step": 1_234_567, "checkpoint_seconds": 1.235}},
    }


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((409, {"reason": "StaleAttempt", "message": "the job is at attempt 4"}), "StaleAttempt: the job is at"),
        ((503, {"reason": "NotLeading", "message": "ask another"}), "NotLeading"),
        ((500, b"<html>"), "Expecting value"),
        ((200, b"[]"), "not an object"),
    ],
)
def test_rejection_is_logged_once(
    folder: Path, operator: FakeOperator, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any], words: str
) -> None:
    monkeypatch.setattr(reporter, "MAX_RETRY_SECONDS", 0.01)
    operator.report_answer, ranks = answer, Ranks(r0=7)
    with reporting(credentials(folder, operator.port), ranks):
        until(lambda: len(operator.reports) > 5, 20, "tries")
        assert len(ranks.lines) == 1
        assert words in ranks.lines[0]
        assert "training continues" in ranks.lines[0]
        operator.report_answer = 200, {"next": 1}
        until(lambda: len(ranks.lines) == 2, 20, "the line about success")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("TRAINYARD_COORDINATOR", "http://localhost:1", "must be https://NAME:PORT"),
        ("TRAINYARD_COORDINATOR", "https://", "must be https://NAME:PORT"),
        ("TRAINYARD_COORDINATOR_CA", "none", "TRAINYARD_COORDINATOR_CA holds no certificate"),
    ],
)
def test_invalid_coordinator_settings_are_logged(folder: Path, name: str, value: str, words: str) -> None:
    ranks = Ranks(r0=7)
    with reporting({**credentials(folder, 1), name: value}, ranks) as made:
        until(lambda: ranks.lines, 10, "a log line")
        made.finish()
    assert [words in line for line in ranks.lines] == [True]


def test_no_thread_without_a_coordinator() -> None:
    with reporting({}, Ranks(r0=7)) as made:
        made.finish()
        assert made._thread is None


def test_exit_does_not_wait_for_unreachable_operator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "MAX_RETRY_SECONDS", 0.01)
    ranks = Ranks(r0=7)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with reporting(credentials(folder, port), ranks) as made:
        until(lambda: ranks.lines, 20, "a log line")
        began = time.monotonic()
        made.finish()
        assert time.monotonic() - began < 1


# Choice of the operator's process


def addresses(*found: str) -> Callable[..., list[tuple[Any, ...]]]:
    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, *more: Any, **options: Any) -> list[tuple[Any, ...]]:
        if host != "localhost":
            return [*real(host, port, *more, **options)]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    return getaddrinfo


def test_leader_is_found_and_remembered(folder: Path, operator: FakeOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_operator(folder, operator.port, "127.0.0.2") as leader:
        operator.report_answer = 503, {"reason": "NotLeading", "message": "ask another"}
        monkeypatch.setattr(socket, "getaddrinfo", addresses("127.0.0.1", "127.0.0.2"))
        found = Coordinator(credentials(folder, operator.port))
        for _ in range(3):
            assert found.report({}, 5) == 1.0
        assert (len(operator.reports), len(leader.reports)) == (1, 3)
        operator.report_answer, leader.report_answer = leader.report_answer, operator.report_answer
        found.report({}, 5)
        found.report({}, 5)
        assert (len(operator.reports), len(leader.reports)) == (3, 4)


@pytest.mark.parametrize("leads_first", [True, False])
def test_rejection_of_leader_is_raised(
    folder: Path, operator: FakeOperator, monkeypatch: pytest.MonkeyPatch, *, leads_first: bool
) -> None:
    with serve_operator(folder, operator.port, "127.0.0.2") as other:
        leader, standby = (operator, other) if leads_first else (other, operator)
        leader.report_answer = 503, {"reason": "KeysUnknown", "message": "later"}
        standby.report_answer = 503, {"reason": "NotLeading", "message": "ask another"}
        monkeypatch.setattr(socket, "getaddrinfo", addresses("127.0.0.1", "127.0.0.2"))
        with pytest.raises(NoAnswerError, match="KeysUnknown: later"):
            Coordinator(credentials(folder, operator.port)).report({}, 5)


def test_unreachable_address_is_skipped(folder: Path, operator: FakeOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", addresses("127.0.0.3", "127.0.0.1"))
    assert Coordinator(credentials(folder, operator.port)).report({}, 5) == 1.0


def test_foreign_certificate_is_not_trusted(folder: Path, operator: FakeOperator, tmp_path: Path) -> None:
    variables = credentials(folder, operator.port)
    for ca in (certificate(tmp_path / "other"), ""):
        with pytest.raises(NoAnswerError, match="certificate verify failed"):
            Coordinator({**variables, "TRAINYARD_COORDINATOR_CA": ca}).report({}, 5)
    elsewhere = {**variables, "TRAINYARD_COORDINATOR": f"https://127.0.0.1:{operator.port}"}
    with pytest.raises(NoAnswerError, match=r"IP address mismatch|not valid for"):
        Coordinator(elsewhere).report({}, 5)
    assert operator.reports == []


def test_token_is_read_for_each_request(folder: Path, operator: FakeOperator) -> None:
    found = Coordinator(credentials(folder, operator.port))
    found.report({}, 5)
    (folder / "token").write_text("d.e.f")
    found.report({}, 5)
    assert operator.tokens == ["Bearer a.b.c", "Bearer d.e.f"]
    (folder / "token").unlink()
    with pytest.raises(NoAnswerError, match="No such file"):
        found.report({}, 5)


@pytest.mark.parametrize(("answer", "pause"), [(0, 1), (1e9, 600), (None, 60), ("soon", 60), (True, 1)])
def test_report_pause_is_clamped(folder: Path, operator: FakeOperator, answer: object, pause: float) -> None:
    operator.report_answer = 200, {"next": answer}
    assert Coordinator(credentials(folder, operator.port)).report({}, 5) == pause


def test_delay_of_a_refusal_is_kept(folder: Path, operator: FakeOperator) -> None:
    operator.report_answer = 429, {"reason": "TooOften", "message": "slowly", "after": 17.5}
    ranks = Ranks(r0=7)
    coordinator = Coordinator(credentials(folder, operator.port))
    assert Reporter({}, 3, ranks.poll, ranks.lines.append)._report(coordinator.report, 5.0) == 17.5
