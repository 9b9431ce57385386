"""What an API server serves, as JSON schemas that kubeconform reads: one file a kind, each with all that it needs.

Strict: fields that the server does not know are refused. The server's own description is loose in two places, where it
takes numbers beside the strings that it describes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]
TEMPLATE: Final = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""The names of the schema files, as a template for kubeconform: kind, first word of the group if it has one, and version."""
PREFIX: Final = "#/definitions/"
LOOSE: Final[Mapping[str, Json]] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}


def write(described: Json, folder: Path) -> None:
    """A file for each kind of the definitions that a server describes its API with."""
    definitions = {**{name: _strict(schema) for name, schema in described.items()}, **LOOSE}
    for name, schema in described.items():
        needed = _needed(name, definitions)
        for kind in schema.get("x-kubernetes-group-version-kind", []):
            words = (kind["kind"].lower(), kind["group"].split(".")[0], kind["version"])
            path = folder / f"{'-'.join(word for word in words if word)}.json"
            path.write_text(json.dumps({"$ref": PREFIX + name, "definitions": needed}))


def _strict(value: Any) -> Any:
    if isinstance(value, list):
        return [_strict(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("x-kubernetes-int-or-string") is True:
        return {"type": ["string", "integer"]}
    # Names of fields are no words of the language: the CRD has one that is called `properties`.
    made = {key: _named(each) if key == "properties" else _strict(each) for key, each in value.items()}
    if "properties" in made and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def _named(fields: Json) -> Json:
    return {name: _strict(each) for name, each in fields.items()}


def _needed(name: str, definitions: Mapping[str, Any]) -> Json:
    """This definition, and those that it refers to."""
    found: Json = {}
    rest = [name]
    while rest:
        one = rest.pop()
        if one not in found:
            found[one] = definitions[one]
            rest += [reference.removeprefix(PREFIX) for reference in _references(definitions[one])]
    return found


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [each for item in value for each in _references(item)]
    if not isinstance(value, dict):
        return []
    own = value.get("$ref")
    return ([own] if isinstance(own, str) else []) + [each for item in value.values() for each in _references(item)]
