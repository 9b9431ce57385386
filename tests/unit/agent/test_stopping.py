"""The slot through which a rank and the agent agree on the last step."""

import multiprocessing
import os
import threading
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tests.support.polling import until
from trainyard_agent import must_stop, stopping
from trainyard_agent.report import FILE_VARIABLE
from trainyard_agent.stopping import STOP_SUFFIX, UNKNOWN, Slot, hold_all


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    stopping._slot.cache_clear()
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "0"))
    return str(tmp_path / f"0{STOP_SUFFIX}")


def test_training_continues_without_a_request(path: str) -> None:
    assert [must_stop(step) for step in range(3)] == [False, False, False]
    assert hold_all([Slot(path)]) == 2


def test_no_step_is_last_without_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    assert not must_stop(1)
    monkeypatch.setenv(FILE_VARIABLE, "/proc/nowhere/0")
    assert not must_stop(1)


@pytest.mark.parametrize(("step", "error"), [(-1, ValueError), (2**63, ValueError), ("3", TypeError), (1.5, TypeError)])
def test_invalid_step_raises(path: str, step: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        must_stop(step)  # type: ignore[arg-type]  # the test passes an invalid type
    assert not Path(path).exists()


def test_last_step_can_be_ahead(path: str) -> None:
    must_stop(0)
    agent = Slot(path)
    assert hold_all([agent]) == 0
    agent.set_stop_step(2)
    assert [must_stop(step) for step in (1, 2, 3)] == [False, True, True]


def polling_rank(step: int) -> tuple[threading.Thread, list[bool]]:
    """Start a rank that polls at this step. Return its thread, and a list that receives the answer."""
    answers: list[bool] = []
    rank = threading.Thread(target=lambda: answers.append(must_stop(step)), daemon=True)
    rank.start()
    return rank, answers


def test_rank_waits_for_the_agreed_step(path: str) -> None:
    must_stop(4)
    agent = Slot(path)
    hold_all([agent])
    rank, answers = polling_rank(5)
    time.sleep(0.1)
    assert not answers
    assert hold_all([agent]) == 4, "it has not passed the step that it waits at"
    agent.set_stop_step(5)
    rank.join(30)
    assert answers == [True]


def test_rank_continues_without_agreement(path: str) -> None:
    must_stop(4)
    agent = Slot(path)
    hold_all([agent])
    rank, answers = polling_rank(5)
    agent.release()
    rank.join(30)
    assert answers == [False]
    assert hold_all([agent]) == 5


def test_rank_without_answer_waits_only_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    must_stop(0)
    agent = Slot(path)
    hold_all([agent])
    monkeypatch.setattr(stopping, "PATIENCE_SECONDS", 0.05)
    assert not must_stop(1)
    monkeypatch.setattr(stopping, "PATIENCE_SECONDS", 3600.0)
    assert not must_stop(2)
    assert hold_all([agent]) == 2
    agent.set_stop_step(3)
    assert must_stop(3)


def test_file_is_whole_when_it_appears(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lock(*_: object) -> None:
        raise OSError("the rank is not scheduled before it locks the file")

    monkeypatch.setattr(Slot, "_locked", no_lock)
    assert not must_stop(1)
    monkeypatch.undo()
    assert Slot(path).passed == UNKNOWN
    assert [each.name for each in Path(path).parent.iterdir()] == [Path(path).name]


@pytest.mark.parametrize("content", [b"", b"short"])
def test_truncated_file_raises(path: str, content: bytes) -> None:
    must_stop(0)
    Path(path).write_bytes(content)
    assert not must_stop(1)
    with pytest.raises(OSError, match="cut off"):
        hold_all([Slot(path)])


def test_locked_slot_does_not_block_the_agent(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    must_stop(0)
    monkeypatch.setattr(stopping, "LOCK_SECONDS", 0.05)
    with Slot(path)._locked(), pytest.raises(BlockingIOError):
        hold_all([Slot(path)])


def _rank(path: str, go: Event, last: "multiprocessing.Queue[int]") -> None:
    os.environ[FILE_VARIABLE] = path
    go.wait(30)
    step = 0
    while not must_stop(step):
        step += 1
    last.put(step)


def test_independent_ranks_stop_after_the_same_step(tmp_path: Path) -> None:
    """No collective synchronizes them: slower ranks catch up with the agreed step, and no rank passes it."""
    context = multiprocessing.get_context("spawn")
    go, last = context.Event(), context.Queue()
    paths = [str(tmp_path / str(rank)) for rank in range(3)]
    ranks = [context.Process(target=_rank, args=(path, go, last), daemon=True) for path in paths]
    for each in ranks:
        each.start()
    go.set()
    end = time.monotonic() + 30
    while not all(Path(path + STOP_SUFFIX).exists() for path in paths) and time.monotonic() < end:
        time.sleep(0.01)
    slots = [Slot(path + STOP_SUFFIX) for path in paths]
    step = hold_all(slots) + 1
    for slot in slots:
        slot.set_stop_step(step)
    assert {last.get(timeout=60) for _ in ranks} == {step}


def test_held_rank_passes_no_further_step(tmp_path: Path) -> None:
    """A rank that makes steps all the time is held and released again and again, at any moment of a step."""
    context = multiprocessing.get_context("spawn")
    go, last = context.Event(), context.Queue()
    path = str(tmp_path / "0")
    rank = context.Process(target=_rank, args=(path, go, last), daemon=True)
    rank.start()
    go.set()
    until(Path(path + STOP_SUFFIX).exists, 30, "the rank's first step")
    slot, held = Slot(path + STOP_SUFFIX), [UNKNOWN]
    for _ in range(40):
        held.append(hold_all([slot]))
        time.sleep(0.01)
        # A rank that saw the request at its next step takes that step back, late where it is not scheduled.
        until(lambda: slot.passed <= held[-1] <= slot.passed + 1, 10, "the rank to take its next step back")
        assert held[-1] >= held[-2] - 1
        slot.release()
        time.sleep(0.007)
    slot.set_stop_step(at := hold_all([slot]) + 1)
    assert last.get(timeout=60) == at
    assert slot.obeyed
