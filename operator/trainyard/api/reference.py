"""The reference pages that are made from the API: what is said once, in a docstring, is said everywhere. Pure."""

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from trainyard.api import reasons, recovery
from trainyard.api.crd import custom_resource_definition

Schema = Mapping[str, Any]

MADE = "<!-- Made by `make generate`; do not edit. -->\n"

REASONS_HEAD = """
# Reasons

One set of words for conditions, events, logs and metrics. Programs can rely on the word; the message beside it is for people.

| Reason | What it means |
|---|---|
"""

CODES_HEAD = """
# Exit codes

What the exit code of the worker that failed first leads to, where none of the job's own `recovery.rules` applies.

| Exit code | Leads to | What it means |
|---|---|---|
"""
CODES_FOOT = """
| all others | Restart | An error that may not come again. |

`Restart`: the group starts anew, and the failure counts towards `recovery.maxRestarts`. `Ignore`: it starts anew at no charge. `RestartElsewhere`:
it starts anew at no charge, and no worker of the job goes to that worker's node for a day (`status.suspectNodes`); once 16 nodes were left in
that way it is not the nodes, and it is `Restart`, as it is where `recovery.avoidNodes` is false. `Fail`: the job fails at once, with the reason
`NonRetryable`.

Where memory runs out (`OOMKilled`) twice in a row without a step further, it is `Fail` instead. 90 and 92 are not believed, and counted, where the three
attempts before ended within a minute too and none got a step further.

A rule of the job's own comes first. Of these, one restarts on exit code 2 after all, one leaves a node whose network fails, and the last fails the job when a
GPU is broken for good:

```yaml
spec:
  recovery:
    rules:
      - {action: Restart, exitCodes: [2]}
      - {action: RestartElsewhere, message: "NCCL WARN*ibv_modify_qp failed"}
      - {action: Fail, message: "CUDA error*uncorrectable ECC"}
```

A rule applies where all that it names is so. The first that applies decides. Pods that were taken away (deleted, evicted, preempted, lost with their
node) cost nothing without a rule. A rule with `reasons`, `podConditions` or `message` can make the job fail instead, or charge them (`Restart`). What the program
did once it was asked to go is no matter of rules.

A pod that its node evicts because it filled a volume, or used more of the node's disk than its limit, was not taken away: it has failed, with the reason `Evicted`, the
kubelet's words, and 137 in the place of an exit code that costs nothing.
"""

JOB_HEAD = """
# TrainingJob

`apiVersion: {group}/{version}`, `kind: {kind}`, short name `{short}`. The same texts are in `kubectl explain {short} --recursive`.
Fields marked * must be given. The fields of `spec.template` are those of a Kubernetes PodTemplateSpec.
"""


def pages() -> dict[str, str]:
    """The pages by file name."""
    return {"reasons.md": reasons_page(), "exit-codes.md": exit_codes_page(), "trainingjob.md": job_page()}


def reasons_page() -> str:
    """All reasons, with their docstrings."""
    rows = [f"| `{value}` | {text} |" for value, text in _member_docs(inspect.getsource(reasons.Reason))]
    return MADE + REASONS_HEAD + "\n".join(rows) + "\n"


def exit_codes_page() -> str:
    """What the exit codes of a worker lead to."""
    all_codes = sorted([*recovery.MEANINGS, *recovery.TOLD], key=lambda meaning: meaning.codes)
    rows = [f"| {', '.join(map(str, meaning.codes))} | {meaning.action} | {meaning.text} |" for meaning in all_codes]
    return MADE + CODES_HEAD + "\n".join(rows) + CODES_FOOT


def job_page() -> str:
    """All fields of spec and status, with their types, defaults and docs."""
    definition = custom_resource_definition()["spec"]
    version = definition["versions"][0]
    names = definition["names"]
    head = JOB_HEAD.format(
        group=definition["group"], version=version["name"], kind=names["kind"], short=names["shortNames"][0]
    )
    schema = version["schema"]["openAPIV3Schema"]
    sections = [_section(part, schema["properties"][part]) for part in ("spec", "status")]
    rules = [f"- {rule['message']}" for rule in _rules(schema)]
    refused = "\n## What is refused\n\nBeside values outside the types and bounds above:\n\n" + "\n".join(rules) + "\n"
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
        if name == "template":
            continue
        if "properties" in field:
            yield from _fields(field, f"{prefix}{name}.")
        if "properties" in field.get("items", {}):
            yield from _fields(field["items"], f"{prefix}{name}[].")


def _type(field: Schema) -> str:
    """The type with its bounds and its default, for people."""
    kind = "number or word" if field.get("x-kubernetes-int-or-string") else field["type"]
    if "enum" in field:
        kind = " \\| ".join(field["enum"])
    if "date-time" in field.values():
        kind = "time"
    bounds = [f"{word} {field[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in field]
    default = field.get("default", {})
    # An object's default is that of its fields.
    defaults = [] if isinstance(default, dict) else ["default " + json.dumps(default).strip('"')]
    return ", ".join([kind, *bounds, *defaults])


def _rules(schema: Schema) -> Iterator[Schema]:
    yield from schema.get("x-kubernetes-validations", ())
    for field in schema.get("properties", {}).values():
        yield from _rules(field)
