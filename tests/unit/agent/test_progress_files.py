"""How the agent reads the progress files of its ranks."""

import os
import threading
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace

import pytest

from trainyard_agent import progress_files
from trainyard_agent.hang import Usual
from trainyard_agent.progress_files import HANG_DETECTION_OFF, Progress
from trainyard_agent.report import FILE_VARIABLE


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """Control the agent's clock; its files are below `tmp_path`."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress_files, "IN_MEMORY", tmp_path)
    return clock


@pytest.mark.parametrize("limit", [None, 20.0, HANG_DETECTION_OFF])
def test_steps_are_measured_without_hang_detection(clock: SimpleNamespace, limit: float | None) -> None:
    with Progress(limit, print, set(), clock=lambda: clock.now) as progress:
        assert progress.interval == 1.0
        file = Path(progress.variables(0)[FILE_VARIABLE])
        for step in range(9):
            file.write_text(f'{{"step": {step}, "computeSeconds": 0.5}}')
            assert progress.find_hang([0]) is None
            clock.now += 2
        assert progress.usual == {0: Usual(2.0, 0.5)}
        found = None
        for _ in range(100):
            clock.now += 5
            found = found or progress.find_hang([0])
    assert (found is None) is (limit == HANG_DETECTION_OFF)


@pytest.mark.parametrize("launcher", [False, True])
def test_hang_at_start_of_next_attempt_is_detected(clock: SimpleNamespace, *, launcher: bool) -> None:
    reporting_ranks: set[int] = set()

    def finds_hang(progress: Progress) -> bool:
        """Poll for more than half an hour."""
        for _ in range(360):
            clock.now += 5.1
            if found := progress.find_hang([0, 1]):
                assert (found.rank, found.phase, found.step) == (1, "start", None)
                return True
        return False

    with Progress(None, print, reporting_ranks, launcher=launcher, clock=lambda: clock.now) as progress:
        assert not finds_hang(progress), "no rank is known to report"
        assert progress.folder is not None
        (progress.folder / "1").write_text('{"step": 7, "pid": 1}')
        clock.now += 5
        progress.find_hang([0, 1])
    assert reporting_ranks == {1}
    with Progress(None, print, reporting_ranks, launcher=launcher, clock=lambda: clock.now) as progress:
        assert finds_hang(progress)


@pytest.mark.parametrize("launcher", [False, True])
def test_cleared_folder_is_restored_without_a_hang(clock: SimpleNamespace, tmp_path: Path, *, launcher: bool) -> None:
    with Progress(None, print, set(), launcher=launcher, clock=lambda: clock.now) as progress:
        folder = progress.folder
        assert folder is not None

        def poll(times: int) -> None:
            for _ in range(times):
                clock.now += 2
                assert progress.find_hang([0]) is None

        rmtree(folder)
        assert (progress.step(0), progress.stacks(), progress.blocked(())) == (None, {}, {})
        poll(1)
        for step in range(9):
            (folder / "0").write_text(f'{{"step": {step}, "pid": {os.getpid()}}}')
            poll(1)
        rmtree(folder)
        poll(3000)
        (folder / "0").write_text("9")
        assert progress.step(0) == 9
    assert [*tmp_path.iterdir()] == []


def test_pipe_in_place_of_stacks_blocks_nothing() -> None:
    with Progress(None, print, set(), launcher=False) as progress:
        assert progress.folder is not None
        os.mkfifo(progress.folder / "0.trace")
        done: list[object] = []
        reading = threading.Thread(target=lambda: done.append(progress.traces()), daemon=True)
        reading.start()
        reading.join(5)
        assert done == [{}]
