from pathlib import Path

import pytest

from dev.benchmarks.frameworks.programs import diary
from dev.benchmarks.recovery.milestones import DiaryReader


def test_the_reader_understands_a_diary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lives").mkdir()
    for rank in (0, 1):
        monkeypatch.setenv("BENCH_POD", f"job-worker-{rank}")
        written = diary.Diary(tmp_path, began=5.0)
        written.connected(rank, 2, "token")
        written.write("loaded", step=10)
        written.step(11)
        written._file.close()
    (group,) = DiaryReader(tmp_path / "lives").read()
    assert (group.name, group.size, group.complete, group.last_step) == ("token", 2, True, 11)
    assert [(life.rank, life.pod, life.marks["started"]) for life in group.lives] == [
        (0, "job-worker-0", 5.0),
        (1, "job-worker-1", 5.0),
    ]
    assert sorted(life.diary for life in group.lives) == sorted(path.name for path in (tmp_path / "lives").iterdir())


def test_a_remote_start_has_its_host_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lives").mkdir()
    monkeypatch.delenv("BENCH_POD", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "job-worker-1")
    diary.Diary(tmp_path, began=0.0)._file.close()
    (path,) = (tmp_path / "lives").iterdir()
    assert path.name.startswith("job-worker-1-")


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    assert diary.load(tmp_path) == (0, [0.0] * diary.WEIGHTS)
    diary.save(tmp_path, 20, [0.5, 1.5])
    assert diary.load(tmp_path) == (20, [0.5, 1.5])
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.json"]
