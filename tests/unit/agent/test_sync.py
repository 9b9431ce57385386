"""The agent and an operator that refuses, talks nonsense, or goes away: what becomes of the ranks."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.agents.credentials import certificate
from tests.support.polling import until
from tests.unit.agent.operator_process import Operator, credentials, operating
from tests.unit.agent.running import agent, alive
from tests.unit.agent.scripts import COLD, STAY
from trainyard_agent import channel
from trainyard_agent.coordinator import Coordinator
from trainyard_agent.errors import NoAnswerError
from trainyard_agent.operator_link import Failure
from trainyard_agent.orders import Final
from trainyard_agent.protocol import AgentState
from trainyard_agent.sync import Sync
from trainyard_agent.termination_message import MESSAGE_BYTES

FAILS_WHEN_TOLD = f"{STAY}\nwait_for('go')\nsys.exit(6 if R == 3 else 0)"
REPLACED = 410, {"reason": "Replaced", "message": "another pod has this place"}
OVER = 410, {"reason": "Over", "message": "the job has ended"}


@pytest.mark.parametrize("answer", [REPLACED, OVER])
def test_with_a_failure_it_ends_by_that(program: Path, folder: Path, operator: Operator, answer: Any) -> None:
    script = f"{STAY}\nif R == 3: raise ValueError('boom')\ntime.sleep(600)"
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        operator.hears("failed")
        operator.says = answer
        assert run.ends()[0] == 1
        assert run.message.startswith("rank 3 exited with code 1: ValueError: boom\nTraceback")


def test_a_failure_is_known_while_the_next_attempt_is_waited_for(
    program: Path, folder: Path, operator: Operator
) -> None:
    with agent(program, folder, f"{STAY}\nsys.exit(7)", **credentials(folder, operator.port), **COLD) as run:
        operator.hears("failed")
        operator.order(2, run=False)
        operator.hears("waiting", 2)
        operator.says = OVER
        assert run.ends()[0] == 7
        assert " exited with code 7" in run.message


@pytest.mark.parametrize("answer", [REPLACED, OVER])
def test_ranks_that_run_are_left_to_the_end_of_their_pod(
    program: Path, folder: Path, operator: Operator, answer: Any
) -> None:
    operator.says = answer
    with agent(program, folder, FAILS_WHEN_TOLD, **credentials(folder, operator.port), **COLD) as run:
        operator.hears("running")
        run.file("ran2-1")
        until(lambda: not operator.connected, 60, "the agent to ask no more")
        (folder / "go").touch()
        assert run.ends()[0] == 6
        assert {poll["state"] for poll in operator.polls} == {"running"}


@pytest.mark.parametrize("answer", [(404, b"404: Not Found"), (404, {"reason": "Unknown"})])
def test_with_an_older_operator_a_failure_ends_the_container(
    program: Path, folder: Path, operator: Operator, answer: Any
) -> None:
    operator.says = answer
    with agent(program, folder, FAILS_WHEN_TOLD, **credentials(folder, operator.port), **COLD) as run:
        operator.hears("running")
        (folder / "go").touch()
        assert run.ends()[0] == 6
        assert len(operator.polls) <= 2


def test_an_operator_that_never_answers_is_waited_for_for_ten_seconds(program: Path, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with agent(program, folder, f"{STAY}\nsys.exit(6)", **credentials(folder, port), **COLD) as run:
        code, said = run.ends()
        assert code == 6
        assert run.message.startswith("rank ")
        assert said.count("the operator does not answer; the ranks keep running: ") == 1


def test_an_operator_that_dies_and_comes_back_with_another_order_is_followed(
    program: Path, folder: Path, operator: Operator
) -> None:
    script = f"{STAY}\nif A == '1': time.sleep(600)\nwait_for('go')"
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        operator.hears("running")
        rank = int(run.file("ran2-1"))
        operator.stop()
        with operating(folder, operator.port) as next_one:
            assert next_one.hears("running") == {"attempt": 1, "state": "running"}
            assert alive(rank)
            next_one.order(5, run=True)
            run.file("ran2-5")
            next_one.hears("running", 5)
            (folder / "go").touch()
            assert run.ends()[0] == 0
            assert not alive(rank)


def test_one_that_fails_while_the_operator_is_away_tells_it_later(
    program: Path, folder: Path, operator: Operator
) -> None:
    script = f"{STAY}\nif A == '1':\n    wait_for('go')\n    sys.exit(6)"
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        # Answered once: an operator that is known to give orders.
        operator.says = 200, {"attempt": 1, "run": True}
        operator.hears("running", times=2)
        operator.stop()
        (folder / "go").touch()
        rank = int(run.file("ran2-1"))
        until(lambda: not alive(rank), 60, "the ranks to end")
        with operating(folder, operator.port) as next_one:
            assert next_one.hears("failed")["failure"]["code"] == 6
            next_one.order(2, run=True)
            assert run.ends()[0] == 0


NONSENSE = [
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


@pytest.mark.parametrize("answer", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_and_refusals_harm_no_rank_and_are_said_once(
    program: Path, folder: Path, operator: Operator, answer: Any
) -> None:
    operator.says = answer
    script = f"{STAY}\nif A == '1':\n    wait_for('go')\n    sys.exit(6)"
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        operator.hears("running", times=4)
        assert alive(int(run.file("ran2-1")))
        operator.says = None
        (folder / "go").touch()
        operator.hears("failed")
        operator.order(2, run=True)
        code, said = run.ends()
        assert code == 0
        lines = [line for line in said.splitlines() if "malformed response" in line or "does not answer" in line]
        assert 1 <= len(lines) <= 2
        assert "Traceback" not in said


def test_an_environment_of_which_no_place_follows_is_said_and_another_is_waited_for(
    program: Path, folder: Path, operator: Operator
) -> None:
    with agent(program, folder, f"{STAY}\nsys.exit(A == '1')", **credentials(folder, operator.port), **COLD) as run:
        operator.hears("failed")
        operator.order(2, run=True, TRAINYARD_REPLICAS="many")
        operator.hears("waiting", 2, times=2)
        operator.order(2, run=True)
        code, said = run.ends()
        assert code == 0
        assert said.count("cannot start attempt 2 as ordered: TRAINYARD_REPLICAS must be") == 1


def test_one_connection_lasts_and_no_question_follows_hot_on_an_answer(
    program: Path, folder: Path, operator: Operator
) -> None:
    operator.says = 200, {"attempt": 1, "run": True}
    script = f"{STAY}\nwait_for('go')"
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        began = until(lambda: len(operator.polls) >= 1, 60, "the first question")
        took = until(lambda: len(operator.polls) >= 3, 60, "two more") - 0.0
        assert began >= 0
        assert took > 1.5
        assert operator.connections == 1
        (folder / "go").touch()
        assert run.ends()[0] == 0


def test_one_that_takes_questions_and_never_answers_is_not_waited_for_for_ever(
    folder: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "HOLD_SECONDS", 1.0)
    with Sync(credentials(folder, operator.port), lambda _: None, lambda: None, 1, AgentState.RUNNING) as sync:
        until(lambda: sync.view(0).silence == 0.0, 60, "a question that is held")
        until(lambda: len(operator.polls) > 1, 60, "the next one")
        assert sync.view(0).silence > 10
        operator.order(2, run=False)
        until(lambda: sync.view(0).order is not None, 60, "an order")
        assert (sync.view(0).answered, sync.is_active) == (True, True)


def test_a_failure_is_told_as_a_whole(folder: Path, operator: Operator) -> None:
    """Its sentence stands first, and the line that raised last."""
    message = "rank 1 exited with code 1: boom\n" + "x" * (MESSAGE_BYTES - 50) + "\nboom"
    with Sync(credentials(folder, operator.port), lambda _: None, lambda: None, 1, AgentState.RUNNING) as sync:
        sync.report(1, AgentState.FAILED, Failure(1, message, time.monotonic()))
        assert operator.hears("failed")["failure"]["message"] == message


def test_a_machine_that_is_gone_is_noticed(folder: Path, operator: Operator) -> None:
    asked = channel.Channel(Coordinator(credentials(folder, operator.port)))
    connection = asked._open(asked._operator.addresses()[0])
    try:
        made = [connection.sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name, _ in channel.KEEPALIVE]
        assert made == [value for _, value in channel.KEEPALIVE]
        assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    finally:
        asked.close()


def test_one_whose_certificate_is_of_no_known_authority_is_as_good_as_none_until_it_is(
    folder: Path, tmp_path: Path, operator: Operator
) -> None:
    """A new authority, of which pods that run have not been told: each failure would wait for ten minutes."""
    said: list[str] = []
    operator.says = 200, {"attempt": 1, "run": True}
    with Sync(credentials(folder, operator.port), said.append, lambda: None, 1, AgentState.RUNNING) as sync:
        until(lambda: sync.view(0).answered, 60, "an answer")
        operator.stop()
        (tmp_path / "new").mkdir()
        certificate(tmp_path / "new")
        with operating(tmp_path / "new", operator.port):
            until(lambda: not sync.is_active, 60, "the operator to be given up")
            assert (sync.view(0).final, said[-1].startswith("disabled in-place restart")) == (Final.OFF, True)
        with operating(folder, operator.port):
            until(lambda: sync.is_active, 60, "the operator to be asked again")
            assert sync.view(0).final is None


def test_a_process_that_is_gone_is_tried_last(
    folder: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine may take five seconds not to answer, and the next one waits for six before it judges."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", operator.port)) for n in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    coordinator = Coordinator(credentials(folder, operator.port))
    asked = channel.Channel(coordinator)
    operator.says = 200, {"attempt": 1, "run": True}
    assert asked.ask(dict).status == 200
    with operating(folder, operator.port, "127.0.0.2") as other:
        other.says = operator.says
        operator.stop()
        with pytest.raises(NoAnswerError):
            asked.ask(dict)
        assert [address for address, _ in coordinator.addresses()] == ["127.0.0.2", "127.0.0.1"]
        assert asked.ask(dict).status == 200
        asked.close()
