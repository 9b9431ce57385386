from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.frameworks.__main__ import _parser
from dev.benchmarks.frameworks.catalog import FAULTS, FRAMEWORKS
from dev.benchmarks.frameworks.faults import BOUND_SECONDS
from dev.benchmarks.frameworks.systems import RANKS
from dev.benchmarks.frameworks.trial import DIARY, PROGRAMS, FrameworkTrial
from dev.benchmarks.recovery.systems import Job
from dev.localcluster.images import IMAGES, REPOSITORY
from trainyard.api.spec import TrainingJobSpec

JOB = Job("tensorflow-kill-0", Path("/somewhere"))


def templates(manifest: Any) -> list[dict[str, Any]]:
    """Return all pod templates in a manifest, at any depth."""
    if isinstance(manifest, list):
        return [found for each in manifest for found in templates(each)]
    if not isinstance(manifest, dict):
        return []
    own = [manifest["template"]] if "template" in manifest else []
    return own + [found for each in manifest.values() for found in templates(each)]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_pods_are_the_same_for_both_systems(name: str) -> None:
    (ours,) = templates(FRAMEWORKS[name].ours.manifest(JOB))
    theirs = templates(FRAMEWORKS[name].peer.manifest(JOB))
    (own,) = ours["spec"]["containers"]
    for template in theirs:
        assert template["metadata"] == ours["metadata"]
        for part in ("volumes", "topologySpreadConstraints"):
            assert template["spec"][part] == ours["spec"][part]
        (other,) = template["spec"]["containers"]
        for part in ("image", "resources", "volumeMounts"):
            assert other[part] == own[part]
        assert all(variable in other["env"] for variable in own["env"])
        assert {each["tolerationSeconds"] for each in template["spec"]["tolerations"]} == {30}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_both_systems_run_the_same_command(name: str) -> None:
    (ours,) = templates(FRAMEWORKS[name].ours.manifest(JOB))
    command = ours["spec"]["containers"][0]["command"]
    theirs = FRAMEWORKS[name].peer.manifest(JOB)
    commands = [each["spec"]["containers"][0].get("command") for each in templates(theirs)]
    assert command in commands or theirs["spec"]["entrypoint"] == " ".join(command)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_our_manifest_is_a_valid_job(name: str) -> None:
    spec = TrainingJobSpec.model_validate(FRAMEWORKS[name].ours.manifest(JOB)["spec"])
    assert spec.framework == name
    chiefs = [role for role in spec.roles or [] if role.name == "chief"]
    assert spec.replicas + len(chiefs) == RANKS


@pytest.mark.parametrize(
    ("name", "kind", "members"),
    [
        ("tensorflow", "TFJob", {"tfReplicaSpecs": {"Chief": "tensorflow", "Worker": "tensorflow"}}),
        ("jax", "JAXJob", {"jaxReplicaSpecs": {"Worker": "jax"}}),
        ("xgboost", "XGBoostJob", {"xgbReplicaSpecs": {"Master": "xgboost", "Worker": "xgboost"}}),
    ],
)
def test_kubeflow_jobs_have_their_own_names(name: str, kind: str, members: dict[str, dict[str, str]]) -> None:
    manifest = FRAMEWORKS[name].peer.manifest(JOB)
    containers = {
        field: {member: each["template"]["spec"]["containers"][0]["name"] for member, each in specs.items()}
        for field, specs in manifest["spec"].items()
    }
    assert (manifest["kind"], containers) == (kind, members)
    assert FRAMEWORKS[name].peer.jobs_path.endswith(f"/{kind.lower()}s")


def test_kuberay_gives_its_containers_their_command() -> None:
    assert all(
        "command" not in each["spec"]["containers"][0] for each in templates(FRAMEWORKS["ray"].peer.manifest(JOB))
    )


@pytest.mark.parametrize(
    ("name", "job", "restarts"),
    [
        ("ray", {"status": {"failed": 2}}, 2),
        ("ray", {}, 0),
        ("mpi", {"status": {"failed": 2}}, None),
        ("tensorflow", {}, None),
    ],
)
def test_restarts_that_a_peer_reports(name: str, job: dict[str, Any], restarts: int | None) -> None:
    assert FRAMEWORKS[name].peer.restarts(job) == restarts


FAILED = {"conditions": [{"type": "Running", "status": "False"}, {"type": "Failed", "status": "True"}]}
RUNNING = {"conditions": [{"type": "Running", "status": "True"}, {"type": "Failed", "status": "False"}]}


@pytest.mark.parametrize(
    ("name", "status", "ended"),
    [
        ("tensorflow", FAILED, True),
        ("tensorflow", RUNNING, False),
        ("mpi", FAILED, True),
        ("mpi", {}, False),
        ("ray", {"jobDeploymentStatus": "Failed"}, True),
        ("ray", {"jobDeploymentStatus": "Retrying"}, False),
    ],
)
def test_no_recovery_follows_the_end_of_a_job(name: str, status: dict[str, Any], *, ended: bool) -> None:
    assert FRAMEWORKS[name].peer.has_ended({"status": status}) is ended


def test_our_job_has_ended_with_its_completion_time() -> None:
    ours = FRAMEWORKS["mpi"].ours
    assert [ours.has_ended({"status": status}) for status in ({}, {"completionTime": "now"})] == [False, True]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_each_framework_has_four_faults(name: str) -> None:
    faults = FRAMEWORKS[name].faults
    assert [fault.name for fault in faults] == [f"{name}-{kind}" for kind in ("kill", "pod", "first-kill", "first-pod")]
    assert [fault.target(repeat) for fault in faults for repeat in (0, 1)] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert {fault.bound for fault in faults} == {BOUND_SECONDS}


def test_all_faults_are_chosen_by_default() -> None:
    options = _parser().parse_args([])
    assert (options.faults, options.frameworks) == (list(FAULTS), list(FRAMEWORKS))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_pods_find_program_and_diary(name: str) -> None:
    framework = FRAMEWORKS[name]
    trial = FrameworkTrial(framework.ours, None, None, framework.program)  # type: ignore[arg-type]
    files = trial.programs()
    assert files == {"program.py": PROGRAMS / framework.program, "dev/benchmarks/frameworks/programs/diary.py": DIARY}
    assert "from dev.benchmarks.frameworks.programs.diary import" in files["program.py"].read_text()
    assert framework.image in IMAGES


@pytest.mark.parametrize("name", ["peers-ray", "peers-mpi"])
def test_images_of_peers_are_built_from_existing_files(name: str) -> None:
    assert [path for path in IMAGES[name].inputs if not (REPOSITORY / path).is_file()] == []
