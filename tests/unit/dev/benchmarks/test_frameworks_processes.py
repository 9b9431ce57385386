from pathlib import Path

from dev.benchmarks.frameworks.processes import named, writers


def process(proc: Path, pid: int, *, name: str = "python3", files: tuple[str, ...] = (), **variables: str) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    for number, file in enumerate(files):
        (folder / "fd" / str(number)).symlink_to(file)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "environ").write_bytes(b"\0".join(f"{key}={value}".encode() for key, value in variables.items()))


def test_the_writer_of_a_diary_is_found(tmp_path: Path) -> None:
    process(tmp_path, 9, files=("/dev/null", "/bench/lives/a.jsonl"))
    process(tmp_path, 10, files=("/bench/lives/a.jsonl", "/bench/lives/b.jsonl"))
    process(tmp_path, 11, files=("/bench/lives/old.jsonl",))
    assert writers({"a.jsonl", "b.jsonl"}, tmp_path) == {"a.jsonl": 9, "b.jsonl": 10}


def test_a_process_that_ended_has_no_files(tmp_path: Path) -> None:
    (tmp_path / "9").mkdir()
    assert writers({"a.jsonl"}, tmp_path) == {}


def test_named_processes_are_those_of_the_job(tmp_path: Path) -> None:
    process(tmp_path, 5, name="raylet", BENCH_JOB="ray-kill-0", BENCH_POD="ray-kill-0-worker-1-1")
    process(tmp_path, 6, name="raylet", BENCH_JOB="other", BENCH_POD="other-worker-1-1")
    process(tmp_path, 7, name="python3", BENCH_JOB="ray-kill-0", BENCH_POD="ray-kill-0-worker-1-1")
    assert named("ray-kill-0", "raylet", tmp_path) == {5: "ray-kill-0-worker-1-1"}
