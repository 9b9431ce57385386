"""A worker that has to go takes no step of anybody's with it: all ranks end after the same one, with their checkpoints written."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import until
from tests.unit.agent.operator_process import Operator, credentials
from tests.unit.agent.running import Agent, agent, alive, shown
from tests.unit.agent.scripts import COLD, STAY

STEPS = f"""{STAY}
from trainyard_agent import SAVED, must_stop, progress
def terminated(*_):
    say(f"heard{{R}}-{{A}}", step)
    os._exit(143)
signal.signal(signal.SIGTERM, terminated)
step = 0
while True:
    step += 1
    time.sleep(0.01)
    progress(step)
    if must_stop(step):
        break
say(f"last{{R}}-{{A}}", step)
"""
SAVES = f"{STEPS}\nsys.exit(SAVED)"


def takes_part(operator: Operator, attempt: int = 1) -> None:
    until(
        lambda: any("leave" in poll for poll in [*operator.polls] if poll["attempt"] == attempt), 60, "the ranks to ask"
    )


def leave(operator: Operator, **wanted: Any) -> dict[str, Any]:
    """What the worker tells of its end, once it tells this."""
    found: list[dict[str, Any]] = []

    def told() -> bool:
        last = operator.polls[-1].get("leave") or {}
        found[:] = [last]
        return all(last.get(name) == value for name, value in wanted.items())

    until(told, 60, f"the worker to tell {wanted}")
    return found[0]


def settle(operator: Operator) -> int:
    """All that the operator does until the ranks know their last step."""
    operator.orders = {"attempt": 1, "run": True, "stop": {"step": None}}
    step: int = leave(operator, asked=True)["passed"] + 1
    operator.orders = {"attempt": 1, "run": True, "stop": {"step": step}}
    return step


def last_steps(run: Agent) -> list[int]:
    return [int(run.file(f"last{rank}-1")) for rank in (2, 3)]


def test_a_worker_that_has_to_go_ends_after_the_step_that_all_end_after(
    program: Path, folder: Path, operator: Operator
) -> None:
    with agent(program, folder, SAVES, **credentials(folder, operator.port), **COLD) as run:
        takes_part(operator)
        run.process.send_signal(signal.SIGTERM)
        leave(operator, leaving=True)
        step = settle(operator)
        code, _ = run.ends()
        assert (code, last_steps(run)) == (90, [step, step])
        assert not [*folder.glob("heard*")], "the signal would have cost them the step"
        assert operator.polls[-1]["state"] == "ended"


def test_the_others_end_with_it_and_begin_again_where_they_are(program: Path, folder: Path, operator: Operator) -> None:
    poked = "signal.signal(signal.SIGUSR2, lambda *_: say(f'poked{R}', 'yes'))"
    script = f"{poked}\n{STEPS}\nif R == 3: wait_for('written')\nsys.exit(SAVED)"
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        takes_part(operator)
        step = settle(operator)
        assert last_steps(run) == [step, step]
        until(lambda: not alive(int(run.file("ran2-1"))), 60, "the agent to reap rank 2")
        run.process.send_signal(signal.SIGUSR2)
        assert run.file("poked3") == "yes"
        # A signal that the agent had sent when it reaped rank 2 would have arrived before this one.
        assert not [*folder.glob("heard*")], "rank 3 still writes, and has the time for it"
        assert operator.polls[-1]["state"] == "running"
        (folder / "written").touch()
        told = operator.hears("failed")
        assert (told["failure"]["code"], len([p for p in operator.polls if p["state"] == "failed"])) == (90, 1)
        operator.order(2, run=False)
        operator.hears("waiting", 2)
        operator.order(2, run=True)
        takes_part(operator, 2)
        assert run.file("ran2-2")


@pytest.mark.parametrize("evicted", [True, False])
def test_who_ends_well_because_it_was_told_to_has_not_done_its_work(
    program: Path, folder: Path, operator: Operator, *, evicted: bool
) -> None:
    """A loop that `must_stop` ends is followed by the end of the program, where nobody thinks of the exit code."""
    with agent(program, folder, STEPS, **credentials(folder, operator.port), **COLD) as run:
        takes_part(operator)
        if evicted:
            run.process.send_signal(signal.SIGTERM)
            leave(operator, leaving=True)
        step = settle(operator)
        told = f"the ranks exited after step {step}, as agreed; their exit code 0 counts as 90"
        if evicted:
            assert (run.ends()[0], run.message) == (90, told)
        else:
            failure = operator.hears("failed")["failure"]
            assert (failure["code"], shown(failure["message"])) == (90, told)


def test_who_ends_well_before_that_step_has_done_it(program: Path, folder: Path, operator: Operator) -> None:
    script = STEPS.replace("progress(step)", "progress(step)\n    if step == int(os.environ['LAST']): sys.exit(0)")
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD, LAST="300") as run:
        takes_part(operator)
        operator.orders = {"attempt": 1, "run": True, "stop": {"step": None}}
        leave(operator, asked=True)
        operator.orders = {"attempt": 1, "run": True, "stop": {"step": 1000}}
        assert run.ends()[0] == 0


def test_when_nothing_comes_of_it_the_signal_reaches_the_ranks(program: Path, folder: Path, operator: Operator) -> None:
    variables = {**credentials(folder, operator.port), **COLD, "TRAINYARD_GRACE_PERIOD_SECONDS": "2"}
    with agent(program, folder, SAVES, **variables) as run:
        takes_part(operator)
        run.process.send_signal(signal.SIGTERM)
        leave(operator, leaving=True)
        assert run.ends()[0] == 143
        assert {path.name for path in folder.glob("heard*")} == {"heard2-1", "heard3-1"}


def test_who_asks_twice_means_at_once(program: Path, folder: Path, operator: Operator) -> None:
    with agent(program, folder, SAVES, **credentials(folder, operator.port), **COLD) as run:
        takes_part(operator)
        run.process.send_signal(signal.SIGTERM)
        leave(operator, leaving=True)
        run.process.send_signal(signal.SIGTERM)
        assert run.ends()[0] == 143


@pytest.mark.parametrize(
    "answer",
    [(410, {"reason": "Replaced", "message": "another pod has this place"}), (404, {})],
    ids=["replaced", "an older operator"],
)
def test_an_operator_that_has_no_more_to_say_is_not_waited_for(
    program: Path, folder: Path, operator: Operator, answer: Any
) -> None:
    with agent(program, folder, SAVES, **credentials(folder, operator.port), **COLD) as run:
        takes_part(operator)
        operator.says = answer
        run.process.send_signal(signal.SIGTERM)
        assert run.ends()[0] == 143


def test_a_stop_that_is_taken_back(program: Path, folder: Path, operator: Operator) -> None:
    with agent(program, folder, SAVES, **credentials(folder, operator.port), **COLD) as run:
        takes_part(operator)
        operator.orders = {"attempt": 1, "run": True, "stop": {"step": None}}
        before = leave(operator, asked=True)["passed"]
        operator.orders = {"attempt": 1, "run": True}
        leave(operator, asked=False)
        step = settle(operator)
        assert step > before
        assert last_steps(run) == [step, step]


def test_a_rank_that_fails_on_the_way_fails_as_ever(program: Path, folder: Path, operator: Operator) -> None:
    script = f"{STEPS}\nif R == 3: sys.exit(7)\ntime.sleep(600)"
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD):
        takes_part(operator)
        settle(operator)
        assert operator.hears("failed")["failure"]["code"] == 7


def test_ranks_of_which_one_does_not_ask_take_no_part(program: Path, folder: Path, operator: Operator) -> None:
    asks = "if R == 2 and must_stop(step): pass\n    if R == 2: say('asked2', 'yes')\n    if False:"
    script = SAVES.replace("if must_stop(step):", asks)
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        assert run.file("asked2") == "yes"
        operator.hears("running")
        run.process.send_signal(signal.SIGTERM)
        assert run.ends()[0] == 143
        assert not any("leave" in poll for poll in operator.polls)


def test_a_rank_whose_file_is_spoilt_agrees_upon_nothing(program: Path, folder: Path, operator: Operator) -> None:
    script = SAVES.replace("while True:", "say(f'file{R}', os.environ['TRAINYARD_PROGRESS_FILE'])\nwhile True:")
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD) as run:
        takes_part(operator)
        Path(f"{run.file('file3')}.stop").write_bytes(b"")
        operator.orders = {"attempt": 1, "run": True, "stop": {"step": None}}
        assert leave(operator, asked=True)["passed"] is None
        assert run.process.poll() is None


@pytest.mark.parametrize("stop", [7, {"step": -1}, {"step": "x"}, {"step": True}, {"step": 2**60}, []])
def test_nonsense_stops_nobody(program: Path, folder: Path, operator: Operator, stop: Any) -> None:
    with agent(program, folder, SAVES, **credentials(folder, operator.port), **COLD) as run:
        takes_part(operator)
        operator.says = (200, {"attempt": 1, "run": True, "stop": stop})
        until(lambda: len(operator.polls) > 4, 60, "the agent to ask again")
        assert run.process.poll() is None
        assert not any((poll.get("leave") or {}).get("asked") for poll in operator.polls)


def test_a_rank_that_fails_to_save_is_the_cause(program: Path, folder: Path, operator: Operator) -> None:
    script = f"{STEPS}\nif R == 3:\n    time.sleep(1)\n    raise SystemExit('no space left')\nsys.exit(SAVED)"
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD):
        takes_part(operator)
        settle(operator)
        assert operator.hears("failed")["failure"]["code"] == 1


def test_a_rank_that_hangs_while_it_saves_is_noticed_once_its_time_is_over(
    program: Path, folder: Path, operator: Operator
) -> None:
    script = f"{STEPS}\ntime.sleep(1000)"
    patience = {"TRAINYARD_HANG_TIMEOUT_SECONDS": "2", "TRAINYARD_GRACE_PERIOD_SECONDS": "4"}
    with agent(program, folder, script, **credentials(folder, operator.port), **COLD, **patience) as run:
        takes_part(operator)
        settle(operator)
        last_steps(run)
        assert operator.hears("failed")["failure"]["code"] == 91
