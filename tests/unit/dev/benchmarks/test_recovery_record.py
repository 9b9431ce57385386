import json
from pathlib import Path

import pytest

from dev.benchmarks.recovery.record import Record
from dev.benchmarks.recovery.results import Run
from dev.benchmarks.scale.api import BenchmarkError

MACHINE: dict[str, int | str | None] = {"cores": 2, "time": "then"}


def test_what_was_interrupted_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "recovery.json"
    first = Record(out, MACHINE)
    first.add(Run("kill", "jobset", 0, 9.5, 4, {"import": 2.0, "step": None}, "rank 1"))
    first.add(Run("pod", "jobset", 0))
    again = Record(out, MACHINE | {"time": "later"}, resume=True)
    assert again.runs == first.runs
    assert again.missing("jobset", 0, ["kill", "raise", "pod"]) == ["raise"]
    assert again.missing("jobset", 1, ["kill"]) == again.missing("trainyard", 0, ["kill"]) == ["kill"]
    again.add(Run("kill", "jobset", 1, 10.5, 4))
    assert [(row["fault"], row["n"]) for row in json.loads(out.read_text())] == [("kill", 2), ("pod", 1)]
    machines = json.loads((tmp_path / "recovery-runs.json").read_text())["machines"]
    assert [machine["time"] for machine in machines] == ["then", "later"]


@pytest.mark.parametrize("text", [None, "", "[]", '{"runs": [{"fault": "kill"}], "machines": []}', '{"runs": 3}'])
def test_nothing_to_go_on_with(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "recovery-runs.json").write_text(text)
    with pytest.raises(BenchmarkError, match="leave --resume out"):
        Record(tmp_path / "recovery.json", MACHINE, resume=True)


def test_run_starts_over_unless_resumed(tmp_path: Path) -> None:
    (tmp_path / "recovery-runs.json").write_text("nonsense")
    assert Record(tmp_path / "recovery.json", MACHINE).runs == []
