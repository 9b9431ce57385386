"""A member that restarts alone: its node restarts the container, and the agent neither reports a failure nor waits for an attempt."""

from pathlib import Path

import pytest

from tests.unit.agent.agent_process import running_agent
from tests.unit.agent.fake_operator import FakeOperator, credentials

FAILS = 'import os, sys; sys.exit(int(os.environ["CODE"]))'
SLEEPS = "record(f\"ran{R}-{os.environ['TRAINYARD_ATTEMPT']}\", os.getpid())\ntime.sleep(600)"


@pytest.fixture
def alone(folder: Path, operator: FakeOperator) -> dict[str, str]:
    """The variables of such a member."""
    return {
        **credentials(folder, operator.port),
        "TRAINYARD_RESTARTS_ALONE": "1",
        "TRAINYARD_RENDEZVOUS": "wait",
        "TRAINYARD_WARM_START": "0",
    }


@pytest.mark.parametrize("code", [3, 42])
def test_failed_rank_ends_the_container(
    program: Path, folder: Path, operator: FakeOperator, alone: dict[str, str], code: int
) -> None:
    with running_agent(program, folder, FAILS, **alone, CODE=str(code)) as run:
        assert run.wait()[0] == code
        assert f"exited with code {code}" in run.message
    assert "failed" not in {poll["state"] for poll in operator.polls}


def test_next_container_joins_the_same_attempt(
    program: Path, folder: Path, operator: FakeOperator, alone: dict[str, str]
) -> None:
    operator.order(4, run=True)
    alone["TRAINYARD_ATTEMPT"] = "4"
    with running_agent(program, folder, FAILS, **alone, CODE="1") as first:
        assert first.wait()[0] == 1
    with running_agent(program, folder, SLEEPS, **alone) as second:
        assert second.file("ran2-4")


def test_next_attempt_keeps_the_container(
    program: Path, folder: Path, operator: FakeOperator, alone: dict[str, str]
) -> None:
    """The chief has failed: the processes of all members restart in place."""
    with running_agent(program, folder, SLEEPS, **alone) as run:
        run.file("ran2-1")
        operator.order(2, run=True, TRAINYARD_ATTEMPT="2")
        assert run.file("ran2-2")
