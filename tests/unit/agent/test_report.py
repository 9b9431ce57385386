"""Progress that a training program reports, and which values are accepted."""

import mmap
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from trainyard_agent import progress, report, report_file
from trainyard_agent.report import (
    DIR_VARIABLE,
    FILE_VARIABLE,
    MEASURED,
    RANK_VARIABLES,
    RankState,
    read,
)
from trainyard_agent.report_file import MAX_BYTES, STACK_SUFFIX, STACKS


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "0"))
    return str(tmp_path / "0")


def reported_here(*fields: Any) -> RankState:
    """Return the state that this process has reported."""
    return RankState(*fields)._replace(pid=os.getpid())


def reported_state(file: str) -> RankState | None:
    """Return the reported state without measured times."""
    reported = read(file)
    return reported._replace(first=None, seconds=None) if reported else None


def test_reported_progress_is_read(file: str) -> None:
    assert read(file) is None
    for reported, expected in (
        ({"phase": "start"}, reported_here(None, "start")),
        ({"step": 0}, reported_here(0, "train")),
        ({"step": 12_345_678}, reported_here(12_345_678, "train")),
        ({"phase": "checkpoint"}, reported_here(12_345_678, "checkpoint")),
        ({"step": 7, "phase": "evaluate"}, reported_here(7, "evaluate")),
        ({"step": 8}, reported_here(8, "train")),
    ):
        progress(**reported)
        assert reported_state(file) == expected


def test_program_can_ask_for_its_phase(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert report.phase() is None
    assert not Path(file).exists(), "the agent would know of a rank that has reported nothing"
    progress(phase="evaluate")
    assert report.phase() == "evaluate"
    progress(3)
    assert report.phase() == "train"
    monkeypatch.delenv(FILE_VARIABLE)
    assert report.phase() is None


def test_loss_and_total_are_reported(file: str) -> None:
    progress(1, total=90, loss=0.5)
    progress(2)
    assert reported_state(file) == reported_here(2, "train", 90, 0.5)
    progress(3, loss=float("nan"))
    assert reported_state(file) == reported_here(3, "train", 90, None)
    progress(2**53, phase="checkpoint", total=2**53, loss=-1.7976931348623157e308)
    assert reported_state(file) == reported_here(2**53, "checkpoint", 2**53, -1.7976931348623157e308)


def test_step_time_and_first_step_are_measured(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(report_file, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def measured(seconds: float, **reported: Any) -> tuple[int | None, float | None]:
        now[0] += seconds
        progress(**reported)
        words = read(file)
        assert words
        return words.first, words.seconds

    assert measured(30, phase="start") == (None, None)
    assert measured(30, step=41) == (41, None)
    assert measured(0.25, step=42) == (41, None)
    assert measured(0.5, step=44) == (41, None), "two steps in one"
    assert measured(0.25, step=45) == (41, 0.25)
    assert measured(0.125, step=45) == (41, 0.25), "not the next one yet"
    assert measured(0.125, phase="checkpoint") == (41, 0.25)
    assert measured(9, step=46) == (41, 0.25), "it includes an unknown share of the checkpoint"
    assert measured(9, step=47) == (41, 0.25), "a longer step is not usual"
    assert measured(9, step=40) == (41, 0.25), "a repeated step does not count"
    for step in range(41, 72):
        assert measured(0.5, step=step)[0] == 41
    assert read(file) == reported_here(71, "train")._replace(first=41, seconds=0.5)


def test_compute_seconds_belong_to_the_last_step(file: str) -> None:
    progress(1, compute_seconds=0.25)
    assert read(file) == reported_here(1, "train")._replace(compute_seconds=0.25, first=1)
    progress(2, loss=0.5)
    assert read(file) == reported_here(2, "train", None, 0.5)._replace(first=1), "a missing value is unknown"


def test_measurement_is_kept_until_it_changes(file: str) -> None:
    progress(1, measured={"samples_per_second": 512, "mfu": 0.41})
    progress(2)
    found = read(file)
    assert found
    assert (found.step, found.measured) == (2, {"samples_per_second": 512.0, "mfu": 0.41})
    # A diverged run can measure these: they are dropped, and training continues.
    progress(3, measured={"grad_norm": float("nan"), "mfu": float("inf"), "data_share": -0.1, "memory_bytes": 0})
    found = read(file)
    assert found
    assert found.measured == {"memory_bytes": 0.0}


def test_largest_report_fits(file: str) -> None:
    most, longest = 2**53, 1.2345678901234567e-300
    progress(most - 1, total=most)
    progress(
        most, phase="checkpoint", loss=-longest, compute_seconds=longest, measured=dict.fromkeys(MEASURED, longest)
    )
    found = read(file)
    assert found
    assert found.measured == dict.fromkeys(MEASURED, longest)


@pytest.mark.parametrize("measured", [{"samples": 1.0}, {"mfu": "half"}, {"mfu": None}])
def test_invalid_measurement_raises(file: str, measured: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        progress(1, measured=measured)


def test_removed_file_is_written_again(file: str) -> None:
    progress(1)
    open_files = len([*Path("/proc/self/fd").iterdir()])
    for each in (file, file + STACK_SUFFIX):
        Path(each).unlink()
    progress(2)
    assert read(file) == reported_here(2, "train")._replace(first=1)
    os.kill(os.getpid(), STACKS)
    assert "most recent call first" in Path(file + STACK_SUFFIX).read_text()
    assert len([*Path("/proc/self/fd").iterdir()]) == open_files


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text is due but the first."""
    monkeypatch.setattr(report_file, "time", SimpleNamespace(monotonic=lambda: 100.0))


@pytest.mark.usefixtures("stopped_clock")
def test_latest_numbers_are_newer_than_the_text(file: str) -> None:
    progress(1, total=90, loss=0.5, compute_seconds=0.25)
    text = Path(file).read_bytes()[:MAX_BYTES]
    expected = reported_here(2, "train", 90, 0.5)._replace(first=1)
    for reported, state in (
        ({"step": 2}, expected),
        ({"step": 3, "loss": 0.25, "total": 90}, expected._replace(step=3, loss=0.25)),
        ({"step": 4, "compute_seconds": 0.125}, expected._replace(step=4, loss=0.25, compute_seconds=0.125)),
        ({"step": 9, "loss": float("nan")}, expected._replace(step=9, loss=None)),
        ({"step": 2**53, "loss": -1e308}, expected._replace(step=2**53, loss=-1e308)),
    ):
        progress(**reported)
        assert read(file) == state
        assert Path(file).read_bytes()[:MAX_BYTES] == text


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize(
    ("reported", "state"),
    [
        ({"phase": "checkpoint"}, (5, "checkpoint", None, 0.5)),
        ({"step": 5}, (5, "train", None, 0.5)),
        ({"step": 3, "loss": 0.25}, (3, "train", None, 0.25)),
        ({"step": 6, "total": 7}, (6, "train", 7, 0.5)),
    ],
)
def test_text_follows_latest_numbers(file: str, reported: dict[str, Any], state: tuple[Any, ...]) -> None:
    progress(1, loss=0.5)
    progress(5)
    progress(**reported)
    assert reported_state(file) == reported_here(*state)
    progress(state[0] + 1, loss=2)
    assert reported_state(file) == reported_here(state[0] + 1, "train", state[2], 2.0)


@pytest.mark.usefixtures("stopped_clock")
@pytest.mark.parametrize("content", [b"", b"7", b" " * MAX_BYTES])
def test_truncated_file_is_written_again(file: str, content: bytes) -> None:
    progress(1)
    Path(file).write_bytes(content)
    progress(2)
    assert reported_state(file) == reported_here(2, "train")


@pytest.mark.parametrize(
    "latest", [(2**53 + 1, 0.0, 0.0), (-1, 0.0, 0.0), (0, 0.0, 0.0), (1, 9.0, 9.0), (-(2**63), 0.0, 0.0)]
)
def test_invalid_latest_numbers_are_ignored(file: str, latest: tuple[int, float, float]) -> None:
    progress(1, loss=0.5)
    Path(file).write_bytes(Path(file).read_bytes()[:MAX_BYTES] + report_file.LATEST.pack(*latest))
    assert reported_state(file) == reported_here(1, "train", None, 0.5)


@pytest.mark.usefixtures("stopped_clock")
def test_file_that_cannot_be_mapped_has_texts(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "mmap", Mock(side_effect=OSError))
    progress(1)
    progress(2, loss=0.5)
    assert reported_state(file) == reported_here(2, "train", None, 0.5)
    assert b'"step": 2' in Path(file).read_bytes()


@pytest.mark.parametrize("own", [0.0, -0.5, float("nan"), float("inf"), -float("inf")])
def test_invalid_compute_time_is_omitted(file: str, own: float) -> None:
    """A clock that is set back does not stop training."""
    progress(1, compute_seconds=0.25)
    progress(2, compute_seconds=own)
    assert read(file) == reported_here(2, "train")._replace(first=1)


def test_compute_time_without_a_number_raises(file: str) -> None:
    with pytest.raises(ValueError, match="could not convert"):
        progress(1, compute_seconds="soon")  # type: ignore[arg-type]  # the test passes an invalid type
    assert read(file) is None


@pytest.mark.parametrize("total", [-1, 1.5])
def test_invalid_total_raises(file: str, total: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        progress(1, total=total)  # type: ignore[arg-type]  # the test passes an invalid type
    assert read(file) is None


@pytest.mark.parametrize(
    "name", ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "HOROVOD_RANK", "SLURM_PROCID"]
)
def test_launcher_rank_names_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    for each in (FILE_VARIABLE, *RANK_VARIABLES):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(DIR_VARIABLE, str(tmp_path))
    progress(1)
    for nonsense in ("", "-1", "one", "../5", "9" * 10):
        monkeypatch.setenv(name, nonsense)
        progress(1)
    assert [*tmp_path.iterdir()] == []
    monkeypatch.setenv(name, "7")
    progress(2)
    assert reported_state(str(tmp_path / "7")) == reported_here(2, "train")


def test_progress_without_agent_writes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    progress(1)
    assert [*tmp_path.iterdir()] == []


def test_unwritable_file_does_not_raise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "0", tmp_path):
        monkeypatch.setenv(FILE_VARIABLE, str(path))
        progress(1)


@pytest.mark.parametrize("step", [-1, 2**53 + 1, 1.5, "1", float("nan")])
def test_invalid_step_raises(file: str, step: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        progress(step)  # type: ignore[arg-type]  # the test passes an invalid type
    assert read(file) is None


def test_unknown_phase_error_lists_known_phases(file: str) -> None:
    with pytest.raises(ValueError, match="one of start, compile, train, evaluate, checkpoint, got 'lunch'"):
        progress(1, phase="lunch")
    assert read(file) is None


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("120", RankState(120, "train")),
        ("120\n", RankState(120, "train")),
        ('{"step": 3, "phase": "evaluate", "loss": 0.5}', RankState(3, "evaluate", None, 0.5)),
        ('{"step": 3, "total": 90, "mood": "good"}', RankState(3, "train", 90)),
        ('{"step": 3, "computeSeconds": 0.5}', RankState(3, "train", compute_seconds=0.5)),
        ("{}", RankState(None, "train")),
    ],
)
def test_file_of_any_language_is_read(tmp_path: Path, text: str, reported: RankState) -> None:
    (tmp_path / "0").write_text(text)
    assert read(str(tmp_path / "0")) == reported


@pytest.mark.parametrize(
    "text",
    [
        b"-1",
        b"NaN",
        b"Infinity",
        b"1.5",
        b"true",
        b'{"step": "5"}',
        b'{"step": -5}',
        b'{"step": 5, "phase": "lunch"}',
        b'{"step": 5, "total": -1}',
        b'{"step": 5, "loss": "low"}',
        b'{"step": 5, "computeSeconds": "long"}',
        b'{"step": 5, "computeSeconds": true}',
        b'{"step": 5, "pid": "1"}',
        b'{"step": 5, "first": -1}',
        b'{"step": 5, "first": 1.0}',
        b'{"step": 5, "seconds": "0.1"}',
        b'{"step": 5, "seconds": -0.1}',
        b'{"step": 5, "seconds": NaN}',
        b'{"step": 5, "phase": ["train"]}',
        b'"5"',
        b"[5]",
        b"9007199254740993",
        b"step 5",
        b"\xff\xfe",
        b"[" * MAX_BYTES,
        b"1" * (MAX_BYTES + 1),
        b"x" * 10_000_000,
    ],
)
def test_malformed_file_raises(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "0").write_bytes(text)
    with pytest.raises(ValueError, match=r"\w"):
        read(str(tmp_path / "0"))


def test_special_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")
    assert [read(str(tmp_path / name)) for name in ("pipe", "folder", "link", "none")] == [None] * 4


@pytest.mark.parametrize(
    "text", ['{"computeSeconds": %s}', '{"loss": %s}', '{"seconds": %s}', '{"measured": {"mfu": %s}}']
)
def test_number_beyond_float_is_rejected(file: str, text: str) -> None:
    Path(file).write_text(text % ("1" + 400 * "0"))
    with pytest.raises(ValueError, match="is not a number"):
        read(file)
