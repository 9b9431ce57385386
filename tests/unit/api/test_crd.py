"""The CRD: what the API server insists on, and that what is committed is what the models say."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainyard.api.__main__ import FILE, crd_yaml
from trainyard.api.crd import custom_resource_definition
from trainyard.api.reference import pages

Json = dict[str, Any]
ROOT = Path(__file__).parents[3]
VERSION: Json = custom_resource_definition()["spec"]["versions"][0]
SCHEMA: Json = VERSION["schema"]["openAPIV3Schema"]
SPEC: Json = SCHEMA["properties"]["spec"]
STATUS: Json = SCHEMA["properties"]["status"]
FORBIDDEN = {"$ref", "$defs", "anyOf", "oneOf", "allOf", "title", "const", "examples"}


def nodes(schema: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every schema in a schema."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}[]")


ALL = list(nodes(SCHEMA))


@pytest.mark.parametrize("file", [f"crds/{FILE}", f"helm/trainyard/files/{FILE}"])
def test_committed_crd_is_current(file: str) -> None:
    assert (ROOT / file).read_text() == crd_yaml(), "run `make generate`"


@pytest.mark.parametrize("page", pages())
def test_committed_reference_is_current(page: str) -> None:
    assert (ROOT / "docs/reference" / page).read_text() == pages()[page], "run `make generate`"


def test_crd_is_small_enough_for_kubectl_apply() -> None:
    assert len(crd_yaml().encode()) < 250_000


def test_schema_is_structural() -> None:
    assert [(path, key) for path, node in ALL for key in node if key in FORBIDDEN] == []
    typed = {path for path, node in ALL if "type" in node or node.get("x-kubernetes-int-or-string")}
    assert [path for path, _ in ALL if path not in typed] == []


def test_every_field_of_ours_is_described() -> None:
    ours = [*nodes(SPEC, "spec"), *nodes(STATUS, "status")]
    kubernetes = re.compile(r"spec\.template\.|spec\.roles\[\]\.\w+[.\[]")
    named = [(p, n) for p, n in ours if not kubernetes.match(p) and not p.endswith("[]")]
    assert [path for path, node in named if not node.get("description")] == []


def test_prose_of_kubernetes_is_stripped() -> None:
    assert [
        path for path, node in nodes(SPEC["properties"]["template"]["properties"]["spec"]) if "description" in node
    ] == []


def test_list_maps_have_keys_that_are_always_there() -> None:
    for path, node in ALL:
        for key in node.get("x-kubernetes-list-map-keys", ()):
            item = node["items"]
            assert key in item.get("required", ()) or "default" in item["properties"][key], f"{path}: {key}"


@pytest.mark.parametrize(("field", "key"), [("conditions", "type"), ("workers", "name"), ("stragglers", "rank")])
def test_lists_of_the_status_are_maps(field: str, key: str) -> None:
    assert STATUS["properties"][field]["x-kubernetes-list-type"] == "map"
    assert STATUS["properties"][field]["x-kubernetes-list-map-keys"] == [key]


def test_required_fields_have_no_defaults() -> None:
    for path, node in ALL:
        for name in node.get("required", ()):
            assert node["properties"][name].get("default", True), f"{path}.{name}"


def test_defaults() -> None:
    kubernetes = re.compile(r"\.template|\.roles\[\]\.\w+[.\[]")
    defaults = {path: node["default"] for path, node in nodes(SPEC) if "default" in node and not kubernetes.match(path)}
    assert defaults == {
        ".framework": "torch",
        ".replicas": 1,
        ".elastic.multipleOf": 1,
        ".elastic.shrinkAfterSeconds": 60,
        ".elastic.growAfterSeconds": 60,
        ".processesPerReplica": "auto",
        ".parallelism.tensor": 1,
        ".parallelism.pipeline": 1,
        ".parallelism.context": 1,
        ".scheduling": {},
        ".scheduling.gang": "auto",
        ".scheduling.topology.required": False,
        ".recovery": {},
        ".recovery.avoidNodes": True,
        ".recovery.forceDeleteAfterSeconds": 300,
        ".health": {},
        ".health.preflight": "none",
        ".recovery.agent": "auto",
        ".recovery.minRestartScope": "Process",
        ".recovery.hiddenFailures": "Warn",
        ".recovery.warmStart": True,
        ".recovery.maxRestarts": 10,
        ".recovery.noProgressLimit": 3,
        ".lifecycle": {},
        ".lifecycle.suspend": False,
        ".lifecycle.cleanPods": "Running",
        ".roles[].replicas": 1,
    }


def test_omitted_parallelism_stays_unset() -> None:
    assert "default" not in SPEC["properties"]["parallelism"]
    bounds = {name: (f["minimum"], f["maximum"]) for name, f in SPEC["properties"]["parallelism"]["properties"].items()}
    assert bounds == dict.fromkeys(("tensor", "pipeline", "context"), (1, 1024))


def test_status_has_no_defaults_and_requires_nothing() -> None:
    assert [path for path, node in nodes(STATUS) if "default" in node] == []
    assert "required" not in STATUS


def test_names_are_camel_case() -> None:
    names = {name for _, node in [*nodes(SPEC), *nodes(STATUS)] for name in node.get("properties", {})}
    assert [name for name in names if "_" in name or name[0].isupper()] == []
    assert {"processesPerReplica", "ttlSecondsAfterFinished"} <= names


def test_subresources_and_columns() -> None:
    assert VERSION["subresources"]["status"] == {}
    assert VERSION["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    columns = [c["name"] for c in VERSION["additionalPrinterColumns"] if not c.get("priority")]
    assert columns == ["Phase", "Ready", "Attempt", "Restarts", "Step", "Progress %", "Reason", "Age"]


def test_bounds_of_numbers_are_inclusive() -> None:
    """The API server wants a boolean beside the bound, and refuses the whole definition otherwise."""
    assert [path for path, node in ALL if node.keys() & {"exclusiveMinimum", "exclusiveMaximum"}] == []


def test_every_rule_says_what_to_do() -> None:
    rules = [rule for _, node in ALL for rule in node.get("x-kubernetes-validations", ())]
    assert len(rules) == 51
    assert [r for r in rules if " must " not in r["message"] and ";" not in r["message"]] == []
