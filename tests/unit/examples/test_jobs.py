"""Every TrainingJob in `examples/` is one that the API server takes, and every recipe has one that starts it as it is meant."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dev.localcluster.images import IMAGES
from trainyard.api.crd import custom_resource_definition
from trainyard.api.spec import TrainingJobSpec

Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
RECIPES = EXAMPLES / "recipes"
MOUNT = {"name": "program", "mountPath": "/recipes", "readOnly": True}
"""Where a recipe has its program."""
SCHEMA: Json = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def documents() -> Iterator[tuple[str, Json]]:
    for path in sorted(EXAMPLES.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield str(path.relative_to(EXAMPLES)), document


JOBS = {path: document for path, document in documents() if document["kind"] == "TrainingJob"}
OF_RECIPES = {Path(path).stem: job for path, job in JOBS.items() if path.startswith("recipes/")}
EACH = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
EACH_RECIPE = pytest.mark.parametrize("name", OF_RECIPES)


def unknown(value: Any, schema: Json, path: str) -> Iterator[str]:
    """The fields that the schema does not know."""
    if isinstance(value, list):
        for each in value:
            yield from unknown(each, schema["items"], f"{path}[]")
    elif isinstance(value, dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        for name, child in value.items():
            more = schema.get("additionalProperties")
            known = schema.get("properties", {}).get(name, more if isinstance(more, dict) else None)
            if known is None:
                yield f"{path}.{name}"
            else:
                yield from unknown(child, known, f"{path}.{name}")


def worker(job: Json) -> Json:
    """The main container."""
    container: Json = job["spec"]["template"]["spec"]["containers"][0]
    return container


def program(job: Json) -> Path:
    """Where the program that it starts lies in the repository."""
    *start, path = worker(job)["command"]
    launchers = {"deepspeed": ["deepspeed"], "mpi": ["mpirun", "python3", "-m", "mpi4py"]}
    accelerate = ["python3", "-m", "accelerate.commands.launch"]
    assert start in (accelerate, launchers.get(job["spec"]["framework"], ["python3"]))
    folder, _, name = str(path).rpartition("/")
    assert folder == MOUNT["mountPath"]
    return RECIPES / name


@EACH
def test_manifest_has_only_known_fields(job: Json) -> None:
    assert job["apiVersion"] == "trainyard.dev/v1alpha1"
    TrainingJobSpec.model_validate(job["spec"])
    assert [*unknown(job["spec"], SCHEMA["properties"]["spec"], "spec")] == []


def test_an_unknown_field_would_be_seen() -> None:
    job: Json = {"replicas": 2, "template": {"spec": {"containers": [{"name": "main", "imagee": "x"}]}}, "reproduce": 1}
    found = [*unknown(job, SCHEMA["properties"]["spec"], "spec")]
    assert found == ["spec.template.spec.containers[].imagee", "spec.reproduce"]


@EACH
def test_image_exists_in_the_local_cluster(job: Json) -> None:
    assert worker(job)["image"] in {image.reference for image in IMAGES.values()}


@EACH_RECIPE
def test_a_file_is_named_as_its_job(name: str) -> None:
    assert OF_RECIPES[name]["metadata"]["name"] == name


@EACH_RECIPE
def test_ranks_and_devices_fit(name: str) -> None:
    job = OF_RECIPES[name]
    spec = TrainingJobSpec.model_validate(job["spec"])
    assert isinstance(spec.processes_per_replica, int)
    ranks = spec.replicas * spec.processes_per_replica
    assert ranks % (spec.parallelism.ranks if spec.parallelism else 1) == 0
    # The parameter server is of the CPU.
    assert worker(job)["resources"]["limits"].get("nvidia.com/gpu", 0) == spec.processes_per_replica * (
        name != "parameter-server"
    )


@EACH_RECIPE
def test_pods_run_with_restricted_permissions(name: str) -> None:
    job = OF_RECIPES[name]
    assert job["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    assert worker(job)["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@EACH_RECIPE
def test_the_program_is_there_and_knows_its_arguments(name: str) -> None:
    text = program(OF_RECIPES[name]).read_text()
    given = {word for word in worker(OF_RECIPES[name]).get("args", ()) if word.startswith("--")}
    assert given <= set(re.findall(r'add_argument\("(--[a-z-]+)"', text))
    needed = set(re.findall(r'add_argument\("(--[a-z-]+)".*required=True', text))
    assert needed <= given


@EACH_RECIPE
def test_checkpoints_use_a_per_job_folder_on_volume(name: str) -> None:
    job = OF_RECIPES[name]
    main, pod = worker(job), job["spec"]["template"]["spec"]
    if "args" not in main:
        assert [volume["name"] for volume in pod["volumes"]] == ["program"]
        return
    assert main["args"][:2] == ["--checkpoints", "/checkpoints/$(TRAINYARD_JOB_UID)"]
    assert main["volumeMounts"] == [MOUNT, {"name": "checkpoints", "mountPath": "/checkpoints"}]
    _, volume = pod["volumes"]
    claims = [document["metadata"]["name"] for path, document in documents() if path == "recipes/volume.yaml"]
    assert [volume["persistentVolumeClaim"]["claimName"]] == claims


def test_every_program_has_a_job() -> None:
    assert {program(job) for job in OF_RECIPES.values()} == {*RECIPES.glob("*.py")}


def test_every_program_is_in_the_config_map() -> None:
    kustomization = yaml.safe_load((RECIPES / "kustomization.yaml").read_text())
    (generated,) = kustomization["configMapGenerator"]
    assert generated["options"] == {"disableNameSuffixHash": True}
    assert generated["files"] == sorted(path.name for path in RECIPES.glob("*.py"))
    for job in OF_RECIPES.values():
        assert worker(job)["volumeMounts"][0] == MOUNT
        volume = job["spec"]["template"]["spec"]["volumes"][0]
        assert volume == {"name": MOUNT["name"], "configMap": {"name": generated["name"]}}


def test_the_programs_fit_the_annotation_of_kubectl_apply() -> None:
    assert sum(path.stat().st_size for path in RECIPES.glob("*.py")) < 2**18


def test_page_lists_every_job_and_its_ranks() -> None:
    losses = re.findall(
        r"^\| \[`([a-z0-9-]+)`\]\(\1\.yaml\) \| (\d+) \|", (RECIPES / "README.md").read_text(), re.MULTILINE
    )
    specs = {name: job["spec"] for name, job in OF_RECIPES.items()}
    assert {name: int(ranks) for name, ranks in losses} == {
        name: spec["replicas"] * spec["processesPerReplica"]
        + sum(role.get("replicas", 1) for role in spec.get("roles", ()))
        for name, spec in specs.items()
    }


def test_removing_the_gpu_line_removes_gpu_requests() -> None:
    for path in RECIPES.glob("*.yaml"):
        lines = [line for line in path.read_text().splitlines() if "nvidia.com" not in line]
        for document in yaml.safe_load_all("\n".join(lines)):
            if document["kind"] == "TrainingJob":
                assert worker(document)["resources"]["limits"].keys() == {"memory"}, path
