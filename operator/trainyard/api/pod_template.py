"""The schema of `spec.template`: Kubernetes' own PodTemplateSpec, as a structural schema without descriptions.

`pod_template.json` is made from the OpenAPI document of a Kubernetes release (`api__v1_openapi.json`) by
`python -m trainyard.api template DOCUMENT`; it is read, never edited.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

Schema = dict[str, Any]

KEPT = {"type", "format", "default", "required", "enum", "items", "properties", "additionalProperties"}
KEPT_EXTENSIONS = {"x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type"}
SHORT: Schema = {"x-kubernetes-int-or-string": True, "maxLength": 64}
"""The API server takes minutes to parse a quantity of a million digits, and the operator would repeat the request."""
NUMBER = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
QUANTITY: Schema = {**SHORT, "pattern": rf"^[+-]?{NUMBER}([KMGTPE]i|[numkMGTPE]|[eE][+-]?{NUMBER})?$"}
"""An amount and a suffix, by the grammar of Kubernetes' reference: `64MB` is rejected here, and not only once pods are created from it."""
INT_OR_STRING: dict[str, Schema] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": QUANTITY,
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": SHORT,
}
DNS_LABEL = {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}


@cache
def pod_template_schema() -> Schema:
    """Return the structural schema of a pod template."""
    schema: Schema = json.loads(files(__package__).joinpath("pod_template.json").read_text())
    return schema


def from_openapi(document: Schema) -> Schema:
    """Return the schema of `spec.template` from a Kubernetes OpenAPI v3 document of the core group."""
    schemas: Schema = document["components"]["schemas"]
    spec = _structural(schemas, {"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"})
    # Debug containers belong to running pods; the API server refuses them in a template.
    del spec["properties"]["ephemeralContainers"]
    spec["x-kubernetes-validations"] = RULES
    spec["properties"]["containers"]["minItems"] = 1
    for kind in ("containers", "initContainers"):
        container = spec["properties"][kind]["items"]
        container["required"] = ["name", "image"]
        container["properties"]["name"] |= DNS_LABEL
    text = {"type": "object", "additionalProperties": {"type": "string"}}
    metadata = {
        "type": "object",
        "properties": {
            "labels": text,
            "annotations": text,
            # `kubectl create --dry-run -o yaml` writes it as null.
            "creationTimestamp": {"type": "string", "format": "date-time", "nullable": True},
        },
    }
    return {"type": "object", "required": ["spec"], "properties": {"metadata": metadata, "spec": spec}}


RULES = [
    {
        "rule": "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
        "message": "restartPolicy must be Never or left out: Trainyard restarts workers itself",
        "fieldPath": ".restartPolicy",
    },
    {
        "rule": "!has(self.hostname) && !has(self.subdomain)",
        "message": "hostname and subdomain must be left out: Trainyard gives each worker its own, by which they find each other",
    },
    {
        "rule": "!has(self.activeDeadlineSeconds)",
        "message": "activeDeadlineSeconds must be left out here: set spec.lifecycle.activeDeadlineSeconds instead",
        "fieldPath": ".activeDeadlineSeconds",
    },
]


def _structural(schemas: Schema, node: Schema) -> Schema:
    reference = node.get("$ref") or next((part["$ref"] for part in node.get("allOf", []) if "$ref" in part), None)
    if reference:
        name = reference.rsplit("/", 1)[-1]
        target: Schema = dict(INT_OR_STRING[name]) if name in INT_OR_STRING else _structural(schemas, schemas[name])
        # An empty object as a default would fill manifests with fields that the user did not set.
        return target if node.get("default", {}) == {} else {**target, "default": node["default"]}
    kept = {key: value for key, value in node.items() if key in KEPT | KEPT_EXTENSIONS}
    if isinstance(kept.get("items"), dict):
        kept["items"] = _structural(schemas, kept["items"])
    if isinstance(kept.get("additionalProperties"), dict):
        kept["additionalProperties"] = _structural(schemas, kept["additionalProperties"])
    if "properties" in kept:
        kept["properties"] = {key: _structural(schemas, value) for key, value in kept["properties"].items()}
        for name in kept.get("required", ()):
            # Go's zero value, which would hide that a required field is missing: for example, a container's name.
            if not kept["properties"][name].get("default", True):
                del kept["properties"][name]["default"]
    return kept
