"""A coordinated stop costs no step: all ranks exit after the same step, with their checkpoints saved."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import until
from tests.unit.agent.agent_process import AgentProcess, displayed, is_alive, running_agent
from tests.unit.agent.fake_operator import FakeOperator, credentials
from tests.unit.agent.rank_scripts import RANK_PRELUDE, WARM_START_OFF

STEPS = f"""{RANK_PRELUDE}
from trainyard_agent import SAVED, must_stop, progress
def terminated(*_):
    record(f"signalled{{R}}-{{A}}", step)
    os._exit(143)
signal.signal(signal.SIGTERM, terminated)
step = 0
while True:
    step += 1
    time.sleep(0.01)
    progress(step)
    if must_stop(step):
        break
record(f"last{{R}}-{{A}}", step)
"""
SAVES = f"{STEPS}\nsys.exit(SAVED)"


def wait_for_participation(operator: FakeOperator, attempt: int = 1) -> None:
    until(
        lambda: any("leave" in poll for poll in [*operator.polls] if poll["attempt"] == attempt),
        60,
        "the ranks to poll",
    )


def wait_for_stop_report(operator: FakeOperator, **wanted: Any) -> dict[str, Any]:
    """Wait until the worker reports these fields of its stop, and return all of them."""
    found: list[dict[str, Any]] = []

    def reported() -> bool:
        last = operator.polls[-1].get("leave") or {}
        found[:] = [last]
        return all(last.get(name) == value for name, value in wanted.items())

    until(reported, 60, f"the worker to report {wanted}")
    return found[0]


def agree_on_step(operator: FakeOperator) -> int:
    """Do what the operator does until the ranks know their last step."""
    operator.orders = {"attempt": 1, "run": True, "stop": {"step": None}}
    step: int = wait_for_stop_report(operator, asked=True)["passed"] + 1
    operator.orders = {"attempt": 1, "run": True, "stop": {"step": step}}
    return step


def last_steps(run: AgentProcess) -> list[int]:
    return [int(run.file(f"last{rank}-1")) for rank in (2, 3)]


def test_evicted_worker_exits_after_agreed_step(program: Path, folder: Path, operator: FakeOperator) -> None:
    with running_agent(program, folder, SAVES, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        wait_for_participation(operator)
        run.process.send_signal(signal.SIGTERM)
        wait_for_stop_report(operator, leaving=True)
        step = agree_on_step(operator)
        code, log = run.wait()
        assert (code, last_steps(run)) == (90, [step, step])
        assert "worker stopped with a checkpoint" in log
        assert "worker failed" not in log
        assert not [*folder.glob("signalled*")], "the signal would have lost the step"
        assert operator.polls[-1]["state"] == "ended"


def test_remaining_workers_stop_and_restart_in_place(program: Path, folder: Path, operator: FakeOperator) -> None:
    notified = "signal.signal(signal.SIGUSR2, lambda *_: record(f'notified{R}', 'yes'))"
    script = f"{notified}\n{STEPS}\nif R == 3: wait_for('written')\nsys.exit(SAVED)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        wait_for_participation(operator)
        step = agree_on_step(operator)
        assert last_steps(run) == [step, step]
        until(lambda: not is_alive(int(run.file("ran2-1"))), 60, "the agent to reap rank 2")
        run.process.send_signal(signal.SIGUSR2)
        assert run.file("notified3") == "yes"
        # A signal that the agent had sent when it reaped rank 2 would have arrived before this one.
        assert not [*folder.glob("signalled*")], "rank 3 still saves, and has the time for it"
        assert operator.polls[-1]["state"] == "running"
        (folder / "written").touch()
        report = operator.wait_for("failed")
        assert (report["failure"]["code"], len([p for p in operator.polls if p["state"] == "failed"])) == (90, 1)
        operator.order(2, run=False)
        operator.wait_for("waiting", 2)
        operator.order(2, run=True)
        wait_for_participation(operator, 2)
        assert run.file("ran2-2")


@pytest.mark.parametrize("evicted", [True, False])
def test_exit_zero_after_agreed_step_is_incomplete(
    program: Path, folder: Path, operator: FakeOperator, *, evicted: bool
) -> None:
    """A program that leaves its loop because of `must_stop` exits with 0 unless it sets an exit code."""
    with running_agent(program, folder, STEPS, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        wait_for_participation(operator)
        if evicted:
            run.process.send_signal(signal.SIGTERM)
            wait_for_stop_report(operator, leaving=True)
        step = agree_on_step(operator)
        expected = f"the ranks exited after step {step}, as agreed; their exit code 0 counts as 90"
        if evicted:
            assert (run.wait()[0], run.message) == (90, expected)
        else:
            failure = operator.wait_for("failed")["failure"]
            assert (failure["code"], displayed(failure["message"])) == (90, expected)


def test_exit_zero_before_agreed_step_is_success(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = STEPS.replace("progress(step)", "progress(step)\n    if step == int(os.environ['LAST']): sys.exit(0)")
    with running_agent(
        program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF, LAST="300"
    ) as run:
        wait_for_participation(operator)
        operator.orders = {"attempt": 1, "run": True, "stop": {"step": None}}
        wait_for_stop_report(operator, asked=True)
        operator.orders = {"attempt": 1, "run": True, "stop": {"step": 1000}}
        assert run.wait()[0] == 0


def test_sigterm_reaches_ranks_without_agreement(program: Path, folder: Path, operator: FakeOperator) -> None:
    variables = {**credentials(folder, operator.port), **WARM_START_OFF, "TRAINYARD_GRACE_PERIOD_SECONDS": "2"}
    with running_agent(program, folder, SAVES, **variables) as run:
        wait_for_participation(operator)
        run.process.send_signal(signal.SIGTERM)
        wait_for_stop_report(operator, leaving=True)
        assert run.wait()[0] == 143
        assert {path.name for path in folder.glob("signalled*")} == {"signalled2-1", "signalled3-1"}


def test_second_sigterm_stops_immediately(program: Path, folder: Path, operator: FakeOperator) -> None:
    with running_agent(program, folder, SAVES, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        wait_for_participation(operator)
        run.process.send_signal(signal.SIGTERM)
        wait_for_stop_report(operator, leaving=True)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait()[0] == 143


@pytest.mark.parametrize(
    "answer",
    [(410, {"reason": "Replaced", "message": "another pod has this place"}), (404, {})],
    ids=["replaced", "older operator"],
)
def test_agent_does_not_wait_after_final_rejection(
    program: Path, folder: Path, operator: FakeOperator, answer: Any
) -> None:
    with running_agent(program, folder, SAVES, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        wait_for_participation(operator)
        operator.fixed_answer = answer
        run.process.send_signal(signal.SIGTERM)
        assert run.wait()[0] == 143


def test_withdrawn_stop_can_be_ordered_again(program: Path, folder: Path, operator: FakeOperator) -> None:
    with running_agent(program, folder, SAVES, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        wait_for_participation(operator)
        operator.orders = {"attempt": 1, "run": True, "stop": {"step": None}}
        before = wait_for_stop_report(operator, asked=True)["passed"]
        operator.orders = {"attempt": 1, "run": True}
        wait_for_stop_report(operator, asked=False)
        step = agree_on_step(operator)
        assert step > before
        assert last_steps(run) == [step, step]


def test_rank_failure_during_stop_is_reported(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"{STEPS}\nif R == 3: sys.exit(7)\ntime.sleep(600)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF):
        wait_for_participation(operator)
        agree_on_step(operator)
        assert operator.wait_for("failed")["failure"]["code"] == 7


def test_stop_requires_all_ranks_to_poll(program: Path, folder: Path, operator: FakeOperator) -> None:
    asks = "if R == 2 and must_stop(step): pass\n    if R == 2: record('asked2', 'yes')\n    if False:"
    script = SAVES.replace("if must_stop(step):", asks)
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        assert run.file("asked2") == "yes"
        operator.wait_for("running")
        run.process.send_signal(signal.SIGTERM)
        assert run.wait()[0] == 143
        assert not any("leave" in poll for poll in operator.polls)


def test_corrupt_stop_file_prevents_agreement(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = SAVES.replace("while True:", "record(f'file{R}', os.environ['TRAINYARD_PROGRESS_FILE'])\nwhile True:")
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        wait_for_participation(operator)
        Path(f"{run.file('file3')}.stop").write_bytes(b"")
        operator.orders = {"attempt": 1, "run": True, "stop": {"step": None}}
        assert wait_for_stop_report(operator, asked=True)["passed"] is None
        assert run.process.poll() is None


@pytest.mark.parametrize("stop", [7, {"step": -1}, {"step": "x"}, {"step": True}, {"step": 2**60}, []])
def test_malformed_stop_order_is_ignored(program: Path, folder: Path, operator: FakeOperator, stop: Any) -> None:
    with running_agent(program, folder, SAVES, **credentials(folder, operator.port), **WARM_START_OFF) as run:
        wait_for_participation(operator)
        operator.fixed_answer = (200, {"attempt": 1, "run": True, "stop": stop})
        until(lambda: len(operator.polls) > 4, 60, "the agent to ask again")
        assert run.process.poll() is None
        assert not any((poll.get("leave") or {}).get("asked") for poll in operator.polls)


def test_rank_that_fails_to_save_is_root_cause(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"{STEPS}\nif R == 3:\n    time.sleep(1)\n    raise SystemExit('no space left')\nsys.exit(SAVED)"
    with running_agent(program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF):
        wait_for_participation(operator)
        agree_on_step(operator)
        assert operator.wait_for("failed")["failure"]["code"] == 1


def test_hang_while_saving_is_detected_after_grace_period(program: Path, folder: Path, operator: FakeOperator) -> None:
    script = f"{STEPS}\ntime.sleep(1000)"
    patience = {"TRAINYARD_HANG_TIMEOUT_SECONDS": "2", "TRAINYARD_GRACE_PERIOD_SECONDS": "4"}
    with running_agent(
        program, folder, script, **credentials(folder, operator.port), **WARM_START_OFF, **patience
    ) as run:
        wait_for_participation(operator)
        agree_on_step(operator)
        last_steps(run)
        assert operator.wait_for("failed")["failure"]["code"] == 91
