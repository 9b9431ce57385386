"""Values of the chart, of all kinds that its schema admits, and a server that says whether what they make would be taken."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from dev.localcluster.tools import ensure
from tests.api.plane import Plane
from tests.support import schemas
from tests.unit.helm.chart import CHART, KUBERNETES, Manifest

Json = dict[str, Any]
APPLY: Final = "application/apply-patch+yaml"
DRY: Final = "fieldManager=helm&force=true&fieldValidation=Strict&dryRun=All"
NAMESPACES: Final = ("lab", "office")
LABELS: Final = {"matchLabels": {"app": "x"}}
TERM: Final = {"topologyKey": "example.org/zone", "labelSelector": LABELS}
NODES: Final = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "In", "values": ["a"]}]}]}
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
PEERS: Final = st.lists(
    st.sampled_from(
        [
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
            {"namespaceSelector": LABELS},
            {"namespaceSelector": {}, "podSelector": LABELS},
        ]
    ),
    max_size=3,
)
NARROWED: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    # Selectors and expressions, whose fields the schema names without saying what fits together.
    "affinity.nodeAffinity": st.just({REQUIRED: NODES}),
    "affinity.podAffinity": st.just({REQUIRED: [TERM]}),
    "affinity.podAntiAffinity": st.just({REQUIRED: [TERM]}),
    "global": st.just({"imageRegistry": "example.org"}),
    "networkPolicy.metricsFrom": PEERS,
    "networkPolicy.jobs.from": PEERS,
    "networkPolicy.apiServer.cidrs[]": st.sampled_from(["10.0.0.1/32", "192.168.0.0/16", "fd00::/8", "::1/128"]),
    # What fits together: of anything else most would be refused, by a template, and nothing of the rest of the values be seen.
    "extraEnv": st.lists(
        st.sampled_from(
            [
                {"name": "HTTPS_PROXY", "value": "http://proxy.example.org:3128"},
                {"name": "_", "value": ""},
                {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
                {"name": "PROXY", "valueFrom": {"configMapKeyRef": {"name": "proxy", "key": "url", "optional": True}}},
                {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            ]
        ),
        max_size=3,
        unique_by=lambda variable: variable["name"],
    ),
    "tolerations[]": st.one_of(
        st.builds(lambda effect: {"operator": "Exists", "effect": effect}, st.sampled_from(EFFECTS)),
        st.just({"operator": "Exists"}),
        st.builds(
            lambda value, effect: {"key": "a.b/c", "value": value, "effect": effect},
            st.sampled_from(["", "x"]),
            st.sampled_from(EFFECTS),
        ),
        st.builds(
            lambda s: {"key": "x", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": s},
            st.integers(-1, 2**40),
        ),
    ),
    # Words of its own, which are the user's; no two constraints look at one key.
    "topologySpreadConstraints[].labelSelector": st.just(LABELS),
    "topologySpreadConstraints[].matchLabelKeys": st.sampled_from([[], ["pod-template-hash"], ["a.b/c", "d"]]),
    # Those that are there.
    "watchNamespaces": st.lists(st.sampled_from(NAMESPACES), unique=True),
    "metrics.dashboards.namespace": st.sampled_from(["", *NAMESPACES]),
    "metrics.prometheusRule.disabled": st.lists(st.sampled_from(["TrainyardNoLeader", "Missing"]), unique=True),
}


def values() -> st.SearchStrategy[Json]:
    """Values that the schema admits; each may be there or not."""
    return of(json.loads((CHART / "values.schema.json").read_text()), "")


def of(schema: Json, path: str) -> st.SearchStrategy[Any]:
    """What a part of the schema admits. Only the words that our schema is made of are known."""
    if path in NARROWED:
        narrowed: st.SearchStrategy[Any] = NARROWED[path]
        return narrowed
    if "anyOf" in schema:
        return st.one_of([of(each, path) for each in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    unknown = schema.keys() - KNOWN
    assert not unknown, f"{path}: the schema says {unknown}"
    kind = schema["type"]
    return PLAIN[kind] if kind in PLAIN else MAKERS[kind](schema, path)


def _object(schema: Json, path: str) -> st.SearchStrategy[Any]:
    named = {
        name: of(each, f"{path}.{name}".removeprefix("."))
        for name, each in schema.get("properties", {}).items()
        if "const" not in each
    }
    needed = {name: named.pop(name) for name in schema.get("required", []) if path.endswith("]")}
    fixed = st.fixed_dictionaries(needed, optional=named)
    more = schema.get("additionalProperties", {})
    patterns: Json = schema.get("patternProperties", {}) or ({"": more} if isinstance(more, dict) and more else {})
    if not patterns:
        return fixed
    ((pattern, value),) = patterns.items()
    keys = of({"type": "string", **schema.get("propertyNames", {}), **({"pattern": pattern} if pattern else {})}, "")
    free = st.dictionaries(keys, of(value, f"{path}.*"), max_size=3)
    return st.tuples(free, fixed).map(lambda both: {**both[0], **both[1]})


def _array(schema: Json, path: str) -> st.SearchStrategy[Any]:
    unique = json.dumps if schema.get("uniqueItems") else None
    return st.lists(of(schema["items"], f"{path}[]"), min_size=schema.get("minItems", 0), max_size=3, unique_by=unique)


def _string(schema: Json, path: str) -> st.SearchStrategy[Any]:
    least, most = schema.get("minLength", 0), schema.get("maxLength", 40)
    if "pattern" not in schema:
        return st.text(PRINTABLE, min_size=least, max_size=most)
    matching = st.from_regex(re.compile(schema["pattern"], re.ASCII), fullmatch=True, alphabet=PRINTABLE)
    return matching.filter(lambda text: least <= len(text) <= schema.get("maxLength", 1000))


def _integer(schema: Json, path: str) -> st.SearchStrategy[Any]:
    return st.integers(schema.get("minimum", 0), schema.get("maximum", 2**31 - 1))


PRINTABLE: Final = st.characters(min_codepoint=32, max_codepoint=126)
KNOWN: Final = {
    *("type", "description", "properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
    *(
        "items",
        "minItems",
        "uniqueItems",
        "minLength",
        "maxLength",
        "pattern",
        "minimum",
        "maximum",
        "$schema",
        "title",
    ),
}
MAKERS: Final[Mapping[str, Callable[[Json, str], st.SearchStrategy[Any]]]] = {
    "object": _object,
    "array": _array,
    "string": _string,
    "integer": _integer,
}
PLAIN: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "number": st.integers(1, 64),
    "boolean": st.booleans(),
    "null": st.none(),
}


@dataclass
class Judge:
    """The server, and kubeconform with what that server serves."""

    plane: Plane
    folder: Path

    @cached_property
    def paths(self) -> dict[tuple[str, str], tuple[str, bool]]:
        """Where objects of a version and kind are, and whether they are in a namespace."""
        versions = {"v1": "/api/v1"}
        for group in self.plane.call("GET", "/apis")["groups"]:
            versions |= {each["groupVersion"]: f"/apis/{each['groupVersion']}" for each in group["versions"]}
        found = {}
        for version, path in versions.items():
            for each in self.plane.call("GET", path)["resources"]:
                if "/" not in each["name"]:
                    found[version, each["kind"]] = f"{path}/{{}}{each['name']}", each["namespaced"]
        return found

    @cached_property
    def schemas(self) -> Path:
        """The folder with what the server serves."""
        folder = self.folder / "schemas"
        folder.mkdir()
        schemas.write(self.plane.call("GET", "/openapi/v2")["definitions"], folder)
        return folder

    def take(self, manifest: Manifest) -> None:
        """Have the server say whether it would take this. Raises RefusedError."""
        template, namespaced = self.paths[manifest["apiVersion"], manifest["kind"]]
        metadata = manifest["metadata"]
        place = template.format(f"namespaces/{metadata['namespace']}/" if namespaced else "")
        # A pod of an account that is not there is refused, so accounts are made.
        how = DRY.replace("&dryRun=All", "") if manifest["kind"] == "ServiceAccount" else DRY
        self.plane.call("PATCH", f"{place}/{metadata['name']}?{how}", dict(manifest), APPLY)

    def conforms(self, manifests: list[Manifest]) -> list[str]:
        """What kubeconform finds, strictly; a kind that it does not know is a finding too."""
        text = "\n---\n".join(json.dumps(manifest) for manifest in manifests)
        location = f"{self.schemas}/{schemas.TEMPLATE}"
        options = ("-strict", "-output", "json", "-kubernetes-version", KUBERNETES, "-schema-location", location)
        done = subprocess.run(
            [ensure("kubeconform")["kubeconform"], *options], input=text, capture_output=True, text=True, check=False
        )
        found = json.loads(done.stdout).get("resources") or []
        return [f"{each['kind']} {each['name']}: {each['msg']}" for each in found]
