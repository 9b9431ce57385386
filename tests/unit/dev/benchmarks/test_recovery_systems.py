from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.recovery.__main__ import _out, _parser
from dev.benchmarks.recovery.faults import FAULTS, rank_of
from dev.benchmarks.recovery.goodput import SCRIPT
from dev.benchmarks.recovery.milestones import WORKERS
from dev.benchmarks.recovery.operators import PEERS
from dev.benchmarks.recovery.systems import DEFAULT, SYSTEMS, Job
from dev.benchmarks.scale.systems import SYSTEMS as SCALED
from trainyard.api.progress import Goodput, LostSeconds
from trainyard.api.spec import TrainingJobSpec

JOB = Job("kill-0", Path("/somewhere"))
MANIFESTS = {name: system.manifest(JOB) for name, system in SYSTEMS.items()}
TEMPLATES = {
    "trainyard": lambda spec: spec["template"],
    "training-operator": lambda spec: spec["pytorchReplicaSpecs"]["Worker"]["template"],
    "jobset": lambda spec: spec["replicatedJobs"][0]["template"]["spec"]["template"],
    "jobset-torchrun": lambda spec: spec["replicatedJobs"][0]["template"]["spec"]["template"],
}


def template(name: str) -> dict[str, Any]:
    found: dict[str, Any] = TEMPLATES[name](MANIFESTS[name]["spec"])
    return found


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_training_is_the_same_for_all(name: str) -> None:
    ours, theirs = template("trainyard"), template(name)
    assert theirs["metadata"] == ours["metadata"]
    for part in ("volumes", "topologySpreadConstraints"):
        assert theirs["spec"][part] == ours["spec"][part]
    (own,), (other,) = ours["spec"]["containers"], theirs["spec"]["containers"]
    for part in ("image", "resources", "volumeMounts"):
        assert other[part] == own[part]
    assert other["command"][-2:] == own["command"][-2:]
    assert all(variable in other["env"] for variable in own["env"])


def test_all_systems_tolerate_lost_nodes_equally_briefly() -> None:
    for name in PEERS:
        assert {each["tolerationSeconds"] for each in template(name)["spec"]["tolerations"]} == {30}


def test_our_manifest_is_a_valid_job() -> None:
    spec = TrainingJobSpec.model_validate(MANIFESTS["trainyard"]["spec"])
    assert (spec.replicas, spec.recovery.hang_timeout_seconds) == (WORKERS, 10)


@pytest.mark.parametrize(
    ("system", "status", "restarts"),
    [
        ("trainyard", {"attempt": 3}, 2),
        ("trainyard", None, 0),
        ("jobset", {"restarts": 2}, 2),
        ("jobset", {}, 0),
        ("training-operator", {"conditions": [{"type": "Restarting"}]}, None),
    ],
)
def test_status_reports_restarts(system: str, status: dict[str, Any] | None, restarts: int | None) -> None:
    assert SYSTEMS[system].restarts({"status": status} if status is not None else {}) == restarts


def test_status_reports_goodput() -> None:
    reported = Goodput(ratio=0.9, productive_seconds=90, lost_seconds=LostSeconds(recovery=10))
    job = {"status": {"goodput": reported.dump()}}
    lost = {"startup": 0.0, "recovery": 10.0, "repeated": 0.0, "preflight": 0.0, "other": 0.0}
    assert SYSTEMS["trainyard"].spent(job) == {"productive": 90.0, **lost}
    assert SYSTEMS["trainyard"].spent({"status": {}}) is SYSTEMS["trainyard"].spent({}) is None
    assert [SYSTEMS[name].spent(job) for name in PEERS] == [None] * len(PEERS)
    assert [name for name, system in SYSTEMS.items() if system.reports_goodput] == ["trainyard"]


def test_every_system_can_be_started() -> None:
    assert set(DEFAULT) <= set(SYSTEMS)
    assert set(SYSTEMS) == {"trainyard", *PEERS}
    assert set(PEERS.values()) <= set(SCALED)


def test_rank_0_is_hit_every_other_time() -> None:
    assert [rank_of(repeat) for repeat in range(8)] == [1, 0, 2, 0, 3, 0, 1, 0]


def test_the_command_line_knows_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert _parser().parse_args([]).repeats == 10
    assert _parser().parse_args(["--faults", "kill,pod"]).faults == ["kill", "pod"]
    with pytest.raises(SystemExit):
        _parser().parse_args(["--systems", "jobset,slurm"])
    assert "unknown: slurm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "recovery.json"),
        (["--goodput", "20"], "recovery.json"),
        (["--faults", "kill"], "recovery-part.json"),
        (["--repeats", "3"], "recovery-part.json"),
        (["--repeats", "3", "--out", "mine.json"], "mine.json"),
    ],
)
def test_partial_run_writes_a_separate_file(words: list[str], name: str) -> None:
    assert _out(_parser().parse_args(words)).name == name


def test_the_script_of_mixed_kinds_has_them_all() -> None:
    assert set(SCRIPT) == set(FAULTS)
