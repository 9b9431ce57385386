"""Ranks continue while the operator rejects requests, answers malformed JSON, or is unreachable."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.agents.credentials import certificate
from tests.support.polling import until
from tests.unit.agent.agent_process import is_alive, running_agent
from tests.unit.agent.fake_operator import FakeOperator, credentials, serve_operator
from tests.unit.agent.rank_scripts import RANK_PRELUDE, WARM_START_OFF
from trainyard_agent import channel
from trainyard_agent.coordinator import Coordinator
from trainyard_agent.errors import NoAnswerError
from trainyard_agent.keepalive import KEEPALIVE
from trainyard_agent.operator_link import Failure
from trainyard_agent.orders import Final
from trainyard_agent.protocol import AgentState
from trainyard_agent.sync import Sync
from trainyard_agent.termination_message import MESSAGE_BYTES

FAILS_ON_REQUEST = f"{RANK_PRELUDE}\nwait_for('go')\nsys.exit(6 if R == 3 else 0)"
REPLACED = 410, {"reason": "Replaced", "message": "another pod has this place"}
OVER = 410, {"reason": "Over", "message": "the job has ended"}


@pytest.mark.parametrize("answer", [REPLACED, OVER])
def test_failed_worker_exits_after_final_answer(
    program: Path, folder: Path, operator: FakeOperator, answer: Any
) -> None:
    script = f"{RANK_PRELUDE}\nif R == 3: raise ValueError('boom')\ntime.sleep(600)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        operator.wait_for("failed")
        operator.fixed_answer = answer
        assert run.wait()[0] == 1
        assert run.message.startswith("rank 3 exited with code 1: ValueError: boom\nTraceback")


def test_failure_is_kept_while_waiting(program: Path, folder: Path, operator: FakeOperator) -> None:
    with running_agent(
        program, folder, f"{RANK_PRELUDE}\nsys.exit(7)", **credentials(folder, operator.port), **WARM_START_OFF
    ) as run:
        operator.wait_for("failed")
        operator.order(2, run=False)
        operator.wait_for("waiting", 2)
        operator.fixed_answer = OVER
        assert run.wait()[0] == 7
        assert " exited with code 7" in run.message


@pytest.mark.parametrize("answer", [REPLACED, OVER])
def test_running_ranks_continue_after_final_answer(
    program: Path, folder: Path, operator: FakeOperator, answer: Any
) -> None:
    operator.fixed_answer = answer
    with running_agent(
        program, folder, FAILS_ON_REQUEST, **credentials(folder, operator.port), **WARM_START_OFF
    ) as run:
        operator.wait_for("running")
        run.file("ran2-1")
        until(lambda: not operator.connected, 60, "the agent to ask no more")
        (folder / "go").touch()
        assert run.wait()[0] == 6
        assert {poll["state"] for poll in operator.polls} == {"running"}


@pytest.mark.parametrize("answer", [(404, b"404: Not Found"), (404, {"reason": "Unknown"})])
def test_failure_exits_with_an_older_operator(program: Path, folder: Path, operator: FakeOperator, answer: Any) -> None:
    operator.fixed_answer = answer
    with running_agent(
        program, folder, FAILS_ON_REQUEST, **credentials(folder, operator.port), **WARM_START_OFF
    ) as run:
        operator.wait_for("running")
        (folder / "go").touch()
        assert run.wait()[0] == 6
        assert len(operator.polls) <= 2


def test_failed_worker_exits_without_an_operator(program: Path, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with running_agent(
        program, folder, f"{RANK_PRELUDE}\nsys.exit(6)", **credentials(folder, port), **WARM_START_OFF
    ) as run:
        code, errors = run.wait()
        assert code == 6
        assert run.message.startswith("rank ")
        assert errors.count("the operator does not answer; the ranks keep running: ") == 1


def test_order_of_restarted_operator_is_followed(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"{RANK_PRELUDE}\nif A == '1': time.sleep(600)\nwait_for('go')"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        operator.wait_for("running")
        rank = int(run.file("ran2-1"))
        operator.stop()
        with serve_operator(folder, operator.port) as restarted:
            assert restarted.wait_for("running") == {"attempt": 1, "state": "running", "stacks": ""}
            assert is_alive(rank)
            restarted.order(5, run=True)
            run.file("ran2-5")
            restarted.wait_for("running", 5)
            (folder / "go").touch()
            assert run.wait()[0] == 0
            assert not is_alive(rank)


def test_failure_during_operator_outage_is_reported_later(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"{RANK_PRELUDE}\nif A == '1':\n    wait_for('go')\n    sys.exit(6)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        # After one answer, the operator is known to give orders.
        operator.fixed_answer = 200, {"attempt": 1, "run": True}
        operator.wait_for("running", times=2)
        operator.stop()
        (folder / "go").touch()
        rank = int(run.file("ran2-1"))
        until(lambda: not is_alive(rank), 60, "the ranks to end")
        with serve_operator(folder, operator.port) as restarted:
            assert restarted.wait_for("failed")["failure"]["code"] == 6
            restarted.order(2, run=True)
            assert run.wait()[0] == 0


MALFORMED = [
    (200, b"<html>"),
    (200, b"[]"),
    (200, b'"' + b"x" * 10_000_000 + b'"'),
    (200, b"[" * 60_000),
    (200, {"attempt": 10**30, "run": True}),
    (200, {"attempt": 2, "run": True, "environment": {"A=B": "x"}}),
    (500, b"oops"),
    (503, b"no healthy upstream"),
    (418, b"[]"),
    (403, {"reason": "UnknownPod", "message": "who are you"}),
    (503, {"reason": "KeysUnknown", "message": "later"}),
    (200, b"\xff\xfe"),
]


@pytest.mark.parametrize("answer", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_answers_are_logged_once(program: Path, folder: Path, operator: FakeOperator, answer: Any) -> None:
    operator.fixed_answer = answer
    script = f"{RANK_PRELUDE}\nif A == '1':\n    wait_for('go')\n    sys.exit(6)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        operator.wait_for("running", times=4)
        assert is_alive(int(run.file("ran2-1")))
        operator.fixed_answer = None
        (folder / "go").touch()
        operator.wait_for("failed")
        operator.order(2, run=True)
        code, errors = run.wait()
        assert code == 0
        lines = [line for line in errors.splitlines() if "malformed response" in line or "does not answer" in line]
        assert 1 <= len(lines) <= 2
        assert "Traceback" not in errors


def test_invalid_environment_is_logged_and_replaced(program: Path, folder: Path, operator: FakeOperator) -> None:
    with running_agent(
        program, folder, f"{RANK_PRELUDE}\nsys.exit(A == '1')", **credentials(folder, operator.port), **WARM_START_OFF
    ) as run:
        operator.wait_for("failed")
        operator.order(2, run=True, TRAINYARD_REPLICAS="many")
        operator.wait_for("waiting", 2, times=2)
        operator.order(2, run=True)
        code, errors = run.wait()
        assert code == 0
        assert errors.count("cannot start attempt 2 as ordered: TRAINYARD_REPLICAS must be") == 1


def test_one_connection_with_pauses_between_requests(program: Path, folder: Path, operator: FakeOperator) -> None:
    operator.fixed_answer = 200, {"attempt": 1, "run": True}
    script = f"{RANK_PRELUDE}\nwait_for('go')"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        began = until(lambda: len(operator.polls) >= 1, 60, "the first question")
        took = until(lambda: len(operator.polls) >= 3, 60, "two more") - 0.0
        assert began >= 0
        assert took > 1.5
        assert operator.connections == 1
        (folder / "go").touch()
        assert run.wait()[0] == 0


def test_unanswered_request_times_out(folder: Path, operator: FakeOperator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HOLD_SECONDS", 1.0)
    with Sync(credentials(folder, operator.port), lambda _: None, lambda: None, 1, AgentState.RUNNING) as sync:
        until(lambda: sync.view(0).silence == 0.0, 60, "a question that is held")
        until(lambda: len(operator.polls) > 1, 60, "the next one")
        assert sync.view(0).silence > 10
        operator.order(2, run=False)
        until(lambda: sync.view(0).order is not None, 60, "an order")
        assert (sync.view(0).answered, sync.is_active) == (True, True)


def test_failure_message_is_sent_whole(folder: Path, operator: FakeOperator) -> None:
    """The headline comes first, and the line that raised comes last."""
    message = "rank 1 exited with code 1: boom\n" + "x" * (MESSAGE_BYTES - 50) + "\nboom"
    with Sync(credentials(folder, operator.port), lambda _: None, lambda: None, 1, AgentState.RUNNING) as sync:
        sync.report(1, AgentState.FAILED, Failure(1, message, time.monotonic()))
        assert operator.wait_for("failed")["failure"]["message"] == message


def test_connection_uses_keepalive(folder: Path, operator: FakeOperator) -> None:
    asked = channel.Channel(Coordinator(credentials(folder, operator.port)))
    connection = asked._open(asked._operator.addresses()[0])
    try:
        made = [connection.sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name, _ in KEEPALIVE]
        assert made == [value for _, value in KEEPALIVE]
        assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    finally:
        asked.close()


def test_unknown_certificate_authority_disables_in_place_restart(
    folder: Path, tmp_path: Path, operator: FakeOperator
) -> None:
    """Running pods do not know a new authority: each failure would wait for ten minutes."""
    lines: list[str] = []
    operator.fixed_answer = 200, {"attempt": 1, "run": True}
    with Sync(credentials(folder, operator.port), lines.append, lambda: None, 1, AgentState.RUNNING) as sync:
        until(lambda: sync.view(0).answered, 60, "an answer")
        operator.stop()
        (tmp_path / "new").mkdir()
        certificate(tmp_path / "new")
        with serve_operator(tmp_path / "new", operator.port):
            until(lambda: not sync.is_active, 60, "the operator to be given up")
            assert (sync.view(0).final, lines[-1].startswith("disabled in-place restart")) == (Final.OFF, True)
        with serve_operator(folder, operator.port):
            until(lambda: sync.is_active, 60, "the operator to be asked again")
            assert sync.view(0).final is None


def test_unreachable_process_is_tried_last(
    folder: Path, operator: FakeOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost machine can cost a timeout of five seconds, and a new leader waits only six."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", operator.port)) for n in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    coordinator = Coordinator(credentials(folder, operator.port))
    asked = channel.Channel(coordinator)
    operator.fixed_answer = 200, {"attempt": 1, "run": True}
    assert asked.ask(dict).status == 200
    with serve_operator(folder, operator.port, "127.0.0.2") as other:
        other.fixed_answer = operator.fixed_answer
        operator.stop()
        with pytest.raises(NoAnswerError):
            asked.ask(dict)
        assert [address for address, _ in coordinator.addresses()] == ["127.0.0.2", "127.0.0.1"]
        assert asked.ask(dict).status == 200
        asked.close()


def test_delay_of_a_refusal_is_kept(folder: Path, operator: FakeOperator) -> None:
    """The agent asks once, and then waits, although its own first delay is 0.2 seconds."""
    operator.fixed_answer = 429, {"reason": "TooOften", "message": "slowly", "after": 1.0}
    asked_at: list[float] = []
    with Sync(credentials(folder, operator.port), print, lambda: None, 1, AgentState.RUNNING):
        for count in (1, 2):
            until(lambda count=count: len(operator.polls) >= count, 10, "a request")  # type: ignore[misc]  # mypy knows no default of a lambda
            asked_at.append(time.monotonic())
    assert asked_at[1] - asked_at[0] >= 0.9
