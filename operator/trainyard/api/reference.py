"""The reference pages that are made from the API: what is said once, in a docstring, is said everywhere. Pure."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from trainyard.api import reasons, recovery
from trainyard.api.base import MAX_ATTEMPT
from trainyard.api.crd import custom_resource_definition
from trainyard.api.remedies import REMEDIES

Schema = Mapping[str, Any]

MADE = "<!-- Made by `make generate`; do not edit. -->\n"

REASONS_HEAD = """
# Reasons

Conditions, events, logs and metrics use the same reasons. Programs can rely on them; messages are for people.

| Reason | Meaning | What to do |
|---|---|---|
"""

CODES_HEAD = """
# Exit codes

The action for the exit code of the worker that failed first, if none of the job's `recovery.rules` applies.

| Exit code | Action | Meaning |
|---|---|---|
"""
CODES_FOOT = """
| all others | Restart | An error that a restart may fix. |

- `Restart`: the group restarts, and the failure counts towards `recovery.maxRestarts`.
- `Ignore`: the group restarts. This is not counted.
- `RestartElsewhere`: the group restarts and avoids the worker's node for a day (`status.suspectNodes`). This is not
  counted. Once the job avoids 16 nodes, or if `recovery.avoidNodes` is false, it is `Restart`.
- `Fail`: the job fails at once, with the reason `NonRetryable`.

If memory runs out (`OOMKilled`) twice in a row without progress, the action is `Fail`. So it is if the same exception at
the same place ends three attempts before a step, one of them in a new pod. A container that can never start (reason
`StartError`: command, arguments, `workingDir`) fails the job at once. The codes 90 and 92 are counted if the three
previous attempts also ended within a minute and made no progress.

The rules of the job come first. The first of these rules restarts on exit code 2. The second avoids a node whose network
fails. The third fails the job when a GPU is broken:

```yaml
spec:
  recovery:
    rules:
      - {action: Restart, exitCodes: [2]}
      - {action: RestartElsewhere, message: "NCCL WARN*ibv_modify_qp failed"}
      - {action: Fail, message: "CUDA error*uncorrectable ECC"}
```

A rule applies if all of its conditions are true. The first rule that applies decides. Disrupted pods (deleted, evicted,
preempted, lost with their node) are not counted without a rule. A rule with `reasons`, `podConditions` or `message` can
make the job fail instead, or count them (`Restart`). Rules ignore the exit of a program that was requested to stop.

A pod that its node evicts because it filled a volume, or exceeded its limit of the node's disk, was not disrupted. It has
failed with the reason `Evicted` and the message of the kubelet. Its exit code 137 is ignored.
"""

JOB_HEAD = """
# TrainingJob

`apiVersion: {group}/{version}`, `kind: {kind}`, short name `{short}`. The same texts are in `kubectl explain {short} --recursive`.
Fields marked * are required. The fields of `spec.template` are those of a Kubernetes PodTemplateSpec.
"""


def pages() -> dict[str, str]:
    """The pages by file name."""
    return {"reasons.md": reasons_page(), "exit-codes.md": exit_codes_page(), "trainingjob.md": job_page()}


def reasons_page() -> str:
    """All reasons, with their docstrings and remedies."""
    docs = _member_docs(inspect.getsource(reasons.Reason))
    rows = [f"| `{value}` | {text} | {REMEDIES[reasons.Reason(value)]} |" for value, text in docs]
    return MADE + REASONS_HEAD + "\n".join(rows) + "\n"


def exit_codes_page() -> str:
    """What the exit codes of a worker lead to."""
    all_codes = sorted([*recovery.MEANINGS, *recovery.DESCRIBED], key=lambda meaning: meaning.codes)
    by_framework = [
        (f" with `framework: {name}`", each) for name, found in recovery.FRAMEWORK_MEANINGS.items() for each in found
    ]
    rows = [
        f"| {', '.join(map(str, meaning.codes))}{where} | {meaning.action} | {meaning.text} |"
        for where, meaning in (*(("", each) for each in all_codes), *by_framework)
    ]
    return MADE + CODES_HEAD + "\n".join(rows) + CODES_FOOT


def job_page() -> str:
    """All fields of spec and status, with their types and docs."""
    definition = custom_resource_definition()["spec"]
    version = definition["versions"][0]
    names = definition["names"]
    head = JOB_HEAD.format(
        group=definition["group"], version=version["name"], kind=names["kind"], short=names["shortNames"][0]
    )
    schema = version["schema"]["openAPIV3Schema"]
    sections = [_section(part, schema["properties"][part]) for part in ("spec", "status")]
    rules = [f"- {rule['message']}" for rule in _rules(schema)]
    refused = "\n## Validation\n\nThe API server also rejects:\n\n" + "\n".join(rules) + "\n"
    return MADE + head + sections[0] + refused + sections[1]


def _member_docs(source: str) -> Iterator[tuple[str, str]]:
    """Value and docstring of each member of an enum, which Python itself does not keep."""
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    for member, doc in pairwise(body):
        match member, doc:
            case ast.Assign(value=ast.Constant(value=str(value))), ast.Expr(value=ast.Constant(value=str(text))):
                yield value, " ".join(text.split())
            case _:
                continue


def _section(title: str, schema: Schema) -> str:
    rows = [f"| `{path}`{star} | {kind} | {text} |" for path, star, kind, text in _fields(schema, "")]
    table = "| Field | Type | What it is |\n|---|---|---|\n" + "\n".join(rows)
    return f"\n## {title}\n\n{schema['description']}\n\n{table}\n"


def _fields(schema: Schema, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in schema["properties"].items():
        star = "*" if name in schema.get("required", ()) else ""
        yield prefix + name, star, _type(field), field["description"].replace("|", "\\|")
        if _is_ours(field):
            yield from _fields(field, f"{prefix}{name}.")
        if _is_ours(field.get("items", {})):
            yield from _fields(field["items"], f"{prefix}{name}[].")


def _is_ours(schema: Schema) -> bool:
    """Return whether this object has fields of this project. Those of Kubernetes have no descriptions."""
    return all("description" in field for field in schema.get("properties", {"": {}}).values())


def _type(field: Schema) -> str:
    """The type with its bounds, for people."""
    kind = "number or word" if field.get("x-kubernetes-int-or-string") else field["type"]
    if "enum" in field:
        kind = " \\| ".join(field["enum"])
    if "date-time" in field.values():
        kind = "time"
    bounds = [
        f"{word} {field[key]}"
        for key, word in (("minimum", "at least"), ("maximum", "at most"))
        if key in field and field[key] < MAX_ATTEMPT
    ]
    return ", ".join([kind, *bounds])


def _rules(schema: Schema) -> Iterator[Schema]:
    yield from schema.get("x-kubernetes-validations", ())
    for field in schema.get("properties", {}).values():
        yield from _rules(field)
