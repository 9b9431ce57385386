"""The demo's example: the data are those that its README names, and the manifests say what the demo shows."""

import ast
import gzip
import hashlib
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

DIGITS = Path(__file__).parents[3] / "examples" / "digits"
BASE = DIGITS / "base"
CONFIG_MAP_BYTES = 2**20
ANNOTATION_BYTES = 2**18


def manifest(name: str) -> Any:
    return yaml.safe_load((BASE / name).read_text())


@pytest.fixture(scope="module")
def rows() -> list[list[int]]:
    with gzip.open(BASE / "digits.csv.gz", "rt") as file:
        return [[int(value) for value in line.split(",")] for line in file]


def test_data_set_has_1797_labelled_8x8_images(rows: list[list[int]]) -> None:
    assert len(rows) == 1797
    assert {len(row) for row in rows} == {65}
    assert {pixel for row in rows for pixel in row[:64]} == set(range(17))
    # As many of each digit as UCI gives for its test set.
    assert Counter(row[64] for row in rows) == dict(enumerate([178, 182, 177, 183, 181, 182, 181, 179, 174, 180]))


def test_no_image_is_in_both_sets(rows: list[list[int]]) -> None:
    training, test = ({tuple(row) for row in part} for part in (rows[:-360], rows[-360:]))
    assert not training & test


def test_the_data_are_those_of_the_readme() -> None:
    compressed = (BASE / "digits.csv.gz").read_bytes()
    recorded = dict(
        reversed(line)
        for line in re.findall(r"^([0-9a-f]{64})  (\S+)$", (DIGITS / "README.md").read_text(), re.MULTILINE)
    )
    assert recorded == {
        "digits.csv.gz": hashlib.sha256(compressed).hexdigest(),
        "digits.csv": hashlib.sha256(gzip.decompress(compressed)).hexdigest(),
    }
    assert "CC BY 4.0" in (DIGITS / "README.md").read_text()


def test_program_and_data_fit_a_config_map() -> None:
    (generated,) = manifest("kustomization.yaml")["configMapGenerator"]
    sizes = [(BASE / name).stat().st_size for name in generated["files"]]
    assert sum(sizes) * 4 / 3 < min(CONFIG_MAP_BYTES, ANNOTATION_BYTES)
    assert generated["options"] == {"disableNameSuffixHash": True}


def test_job_spreads_three_gpu_workers_over_nodes() -> None:
    job = manifest("job.yaml")
    pod = job["spec"]["template"]["spec"]
    (worker,) = pod["containers"]
    (spread,) = pod["topologySpreadConstraints"]
    assert (job["kind"], job["metadata"]["name"], job["spec"]["replicas"]) == ("TrainingJob", "digits", 3)
    assert worker["image"] == "localhost/trainyard/trainer:dev"
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert spread["labelSelector"]["matchLabels"] == {"trainyard.dev/job-name": job["metadata"]["name"]}
    assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)


def test_volumes_claims_and_files_have_one_name_each() -> None:
    pod = manifest("job.yaml")["spec"]["template"]["spec"]
    program, checkpoints = pod["volumes"]
    claim = manifest("checkpoints.yaml")
    volume = manifest("../overlays/local/volume.yaml")
    assert program["configMap"]["name"] == manifest("kustomization.yaml")["configMapGenerator"][0]["name"]
    assert checkpoints["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadWriteMany"]
    patches = " ".join(patch["patch"] for patch in manifest("../overlays/local/kustomization.yaml")["patches"])
    assert f"/spec/volumeName, value: {volume['metadata']['name']}" in patches


def test_the_program_needs_nothing_of_ours() -> None:
    """It tells the agent its step where there is one: the only import that may fail."""
    tree = ast.parse((BASE / "train.py").read_text())
    (attempt,) = [node for node in ast.walk(tree) if isinstance(node, ast.Try) and _catches_import_error(node)]
    optional = {name for part in attempt.body for name in _imported(part)}
    needed = {name for node in ast.walk(tree) if node not in attempt.body for name in _imported(node)}
    assert optional == {"trainyard_agent"}
    assert needed <= {"torch", *sys.stdlib_module_names}


def _catches_import_error(node: ast.Try) -> bool:
    return any(isinstance(each.type, ast.Name) and each.type.id == "ImportError" for each in node.handlers)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [(node.module or "").partition(".")[0]] if isinstance(node, ast.ImportFrom) else []
