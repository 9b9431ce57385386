from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks.options import turns
from dev.benchmarks.scale import peers
from dev.benchmarks.scale.fleet import Fleet
from dev.benchmarks.scale.systems import SYSTEMS
from dev.benchmarks.scale.systems.trainyard import JOBS
from dev.localcluster import tools
from dev.localcluster.paths import Paths
from trainyard.api.spec import TrainingJobSpec

GPU = {"limits": {"nvidia.com/gpu": "1"}}


def test_these_systems_are_measured() -> None:
    assert set(SYSTEMS) == {
        "trainyard",
        "raw",
        "raw-with-jobs",
        "training-operator",
        "training-operator-tuned",
        "jobset",
    }


@pytest.mark.parametrize(
    ("system", "status"),
    [
        ("trainyard", {"phase": "Running", "readyReplicas": 8}),
        ("training-operator", {"replicaStatuses": {"Worker": {"active": 8}}}),
        ("jobset", {"replicatedJobsStatus": [{"ready": 1}]}),
    ],
)
def test_a_status_says_that_all_run(system: str, status: dict[str, Any]) -> None:
    assert SYSTEMS[system].says({"status": status}, 8)


@pytest.mark.parametrize(
    ("system", "status"),
    [
        ("trainyard", {"phase": "Running", "readyReplicas": 7}),
        ("trainyard", {"phase": "Restarting", "readyReplicas": 8}),
        ("training-operator", {"replicaStatuses": {"Worker": {"active": 7}}, "conditions": [{"type": "Running"}]}),
        ("training-operator", {"replicaStatuses": {"Worker": {}}}),
        ("jobset", {"replicatedJobsStatus": [{"ready": 0}]}),
        ("jobset", {}),
        ("raw", {}),
    ],
)
def test_a_status_does_not_say_so_yet(system: str, status: dict[str, Any]) -> None:
    assert not SYSTEMS[system].says({"status": status}, 8)
    assert not SYSTEMS[system].says({}, 8)


def templates(system: str, body: dict[str, Any]) -> dict[str, Any]:
    spec = body["spec"]
    if body["kind"] == "Pod":
        return body
    match system:
        case "jobset":
            found = spec["replicatedJobs"][0]["template"]["spec"]["template"]
        case "trainyard" | "raw-with-jobs":
            found = spec["template"]
        case _:
            found = spec["pytorchReplicaSpecs"]["Worker"]["template"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_gets_the_same_pod(system: str) -> None:
    posts = SYSTEMS[system].load(Fleet(3, 2))
    assert len(posts) == {"raw": 6, "raw-with-jobs": 9}.get(system, 3)
    for path, body in posts:
        assert path.startswith(
            "/api/v1/namespaces/bench/pods" if body.get("kind") == "Pod" else (SYSTEMS[system].jobs_path or JOBS)
        )
        (container,) = templates(system, body)["spec"]["containers"]
        assert (container["name"], container["resources"]) == ("pytorch", GPU)


def test_our_own_job_is_a_valid_one() -> None:
    ((_, job),) = SYSTEMS["trainyard"].load(Fleet(1, 500))
    assert TrainingJobSpec.model_validate(job["spec"]).replicas == 500


def test_plain_client_pods_have_no_owner() -> None:
    pods = [pod for _, pod in SYSTEMS["raw"].load(Fleet(2, 2))]
    assert not any("ownerReferences" in pod["metadata"] for pod in pods)
    assert len({pod["metadata"]["name"] for pod in pods}) == 4


def test_jobs_precede_pods_in_raw_with_jobs() -> None:
    posts = SYSTEMS["raw-with-jobs"].load(Fleet(2, 2))
    assert [body["kind"] for _, body in posts] == ["TrainingJob", "Pod", "Pod"] * 2


@pytest.mark.parametrize(
    ("module", "pin"),
    [
        (peers.TRAINING_OPERATOR, "github.com/kubeflow/training-operator v1.9.3"),
        (peers.JOBSET, "sigs.k8s.io/jobset v0.11.1"),
    ],
    ids=["training-operator", "jobset"],
)
def test_the_peers_are_pinned(module: Any, pin: str) -> None:
    assert pin in (module.source / "go.mod").read_text()
    assert (module.source / "go.sum").exists()


def test_extra_files_change_the_build_folder(tmp_path: Path) -> None:
    without = replace(peers.JOBSET, files=())
    assert tools.folder_of(peers.JOBSET, Paths(tmp_path)) != tools.folder_of(without, Paths(tmp_path))


def test_every_repeat_begins_with_another_system() -> None:
    assert [turns(["x", "y", "z"], repeat) for repeat in range(4)] == [
        ["x", "y", "z"],
        ["y", "z", "x"],
        ["z", "x", "y"],
        ["x", "y", "z"],
    ]
