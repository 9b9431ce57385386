"""The CustomResourceDefinition, made from the pydantic models. Pure."""

import json
from collections.abc import Set as AbstractSet
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard.api.base import Model, rule
from trainyard.api.constants import GROUP, KIND, MAX_JOB_NAME, PLURAL, VERSION
from trainyard.api.spec import Lifecycle, TrainingJobSpec
from trainyard.api.status import TrainingJobStatus

Schema = dict[str, Any]

COLUMNS: list[dict[str, Any]] = [
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Ready", "type": "string", "jsonPath": ".status.ready", "description": "Ready/desired workers"},
    {"name": "Attempt", "type": "integer", "jsonPath": ".status.attempt"},
    {
        "name": "Restarts",
        "type": "integer",
        "jsonPath": ".status.restartCount",
        "description": "Restarts because of failures and disruptions",
    },
    {"name": "Step", "type": "integer", "jsonPath": ".status.progress.step"},
    {
        "name": "Progress %",
        "type": "integer",
        "jsonPath": ".status.progress.percent",
        "description": "The share of the steps that are done",
    },
    {
        "name": "Reason",
        "type": "string",
        "jsonPath": ".status.reason",
        "description": "Why the job waits, restarts, is smaller than requested or has finished; a warning while it runs",
    },
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Framework", "type": "string", "jsonPath": ".spec.framework", "priority": 1},
    {
        "name": "Goodput",
        "type": "number",
        "jsonPath": ".status.goodput.ratio",
        "priority": 1,
        "description": "The share of the active time that went into steps that counted",
    },
    {
        "name": "Failures",
        "type": "integer",
        "jsonPath": ".status.restarts.failures",
        "priority": 1,
        "description": "Attempts that ended because a worker failed or hung",
    },
    {
        "name": "Resizes",
        "type": "integer",
        "jsonPath": ".status.restarts.resizes",
        "priority": 1,
        "description": "Attempts that ended because the group was resized; Restarts does not count them",
    },
    {"name": "Last Failure", "type": "string", "jsonPath": ".status.lastFailure.summary", "priority": 1},
    {"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1},
]

CHANGEABLE_AFTER_THE_END = frozenset({"ttlSecondsAfterFinished", "cleanPods", "keepFailedPodsSeconds"})
"""Fields of `lifecycle` that say what becomes of a finished job."""


def _unchanged(model: type[Model], path: str, changeable: AbstractSet[str]) -> str:
    """Return the CEL expression that all fields of the object at `path` but the changeable ones have their old values."""
    same = []
    for name in map(to_camel, model.model_fields):
        new, old = f"self.{path}.{name}", f"oldSelf.{path}.{name}"
        # Any field may be missing: a default of the CRD may be newer than the job. CEL's optional types exceed its cost limit.
        if name not in changeable:
            same.append(f"(has({new}) == has({old}) && (!has({new}) || {new} == {old}))")
    return " && ".join(same)


def _finished_rule() -> dict[str, Any]:
    """Return the rule for changes of a finished job. A status is written with the stored spec, so it passes."""
    return rule(
        "!(has(oldSelf.status) && has(oldSelf.status.conditions)"
        " && oldSelf.status.conditions.exists(c, c.type in ['Complete', 'Failed'] && c.status == 'True'))"
        f" || ({_unchanged(TrainingJobSpec, 'spec', {'lifecycle'})}"
        f" && {_unchanged(Lifecycle, 'spec.lifecycle', CHANGEABLE_AFTER_THE_END)})",
        "the job is finished; delete it and create it again",
        fieldPath=".spec",
        reason="FieldValueForbidden",
    )


NAME_RULES = [
    rule(
        "!has(self.spec.roles) || self.spec.roles.all(each, self.metadata.name.size() + each.name.size() <= 57)",
        "metadata.name is too long for the host names of its roles (name-role-number), which have at most 63 characters; choose a shorter name",
    ),
    rule(
        f"self.metadata.name.size() <= {MAX_JOB_NAME}",
        f"metadata.name must not be longer than {MAX_JOB_NAME} characters; choose a shorter name."
        " The workers' host names (name-worker-index) can have at most 63 characters",
    ),
    rule(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must start with a letter and hold only a-z, 0-9 and -, because a Service is named after it",
    ),
]


def custom_resource_definition() -> Schema:
    """The CRD as an object, ready to be written as YAML."""
    schema = {
        "type": "object",
        "description": "A distributed training job. The operator creates its workers and restarts them after failures.",
        "required": ["spec"],
        "x-kubernetes-validations": [*NAME_RULES, _finished_rule()],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(TrainingJobSpec.model_json_schema()),
            "status": structural(TrainingJobStatus.model_json_schema(), defaults=False),
        },
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": COLUMNS,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["tj"],
                "categories": ["all"],
            },
            "versions": [version],
        },
    }


def _has_defaults(field: Schema) -> bool:
    """Return whether the API server would fill in a field of this object."""
    return any(each.get("default") not in (None, []) for each in field.get("properties", {}).values())


def _prune_default(field: Schema, *, keep: bool) -> None:
    """Remove the default if it is empty: null, a list, or an object whose fields have none. Without `keep`, remove any."""
    default = field.get("default")
    if not keep or default in (None, []) or (isinstance(default, dict) and not _has_defaults(field)):
        field.pop("default", None)
    elif isinstance(default, dict):
        # The API server fills in the defaults of its fields, and takes no null for one that may be absent.
        field["default"] = {}


def _default(field: Schema) -> str:
    """Return the default of a field as a sentence: `kubectl explain` prints descriptions only."""
    default = field.get("default", {})
    # An object's default is that of its fields.
    return "" if isinstance(default, dict) else " Default: " + json.dumps(default).strip('"') + "."


def structural(schema: Schema, *, defaults: bool = True) -> Schema:
    """A pydantic JSON schema as a structural one: no references, no titles, no null.

    The API server wants each field's type in one place, and an optional field is one that may be absent. A status has no
    `defaults`: a value that was never stored must not look like a stored one.
    """
    definitions = schema.get("$defs", {})

    def convert(node: Schema) -> Schema:
        if "$ref" in node:
            target = definitions[node["$ref"].rsplit("/", 1)[-1]]
            node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
        if "anyOf" in node:
            (choice,) = (part for part in node["anyOf"] if part.get("type") != "null")
            node = {**choice, **{key: value for key, value in node.items() if key != "anyOf"}}
            return convert(node)
        out = {key: value for key, value in node.items() if key not in {"title", "$defs"}}
        _prune_default(out, keep=defaults)
        if isinstance(out.get("description"), str):
            out["description"] = " ".join(out["description"].split()) + _default(out)
        if "properties" in out:
            out["properties"] = {name: convert(child) for name, child in out["properties"].items()}
        for key in ("items", "additionalProperties"):
            if isinstance(out.get(key), dict):
                out[key] = convert(out[key])
        return out

    return convert(schema)
