"""Generate `values.schema.json` from the model of all values, with the descriptions of `values.yaml`."""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from dev.codegen.chart.other_names import ANSWERS
from dev.codegen.chart.values import Chart

Json = dict[str, Any]
DRAFT: Final = "http://json-schema.org/draft-07/schema#"
"""The version that Helm 3 and 4 both read."""
DROPPED: Final = ("title", "default", "description")


def schema(values_yaml: str) -> Json:
    """Return the schema.

    Args:
        values_yaml: the text of `values.yaml`.

    Raises:
        ValueError: it describes a value that the model does not have.
    """
    whole = written_out(Chart.model_json_schema())
    for path, text in descriptions(values_yaml).items():
        if value_schema := _at(path, whole):
            value_schema["description"] = text
    for path, answer in ANSWERS.items():
        parent, _, name = path.rpartition(".")
        holder = _at(parent, whole) if parent else whole
        if holder is not None:
            # A constant: helm's message for any other value quotes it.
            holder["properties"][name] = {"const": answer}
    return {"$schema": DRAFT, "title": "Values of the trainyard chart", **whole}


def descriptions(values_yaml: str) -> dict[str, str]:
    """Return the comments that start with `# -- `, by the dotted path of the value below each of them."""
    return dict(_descriptions(YAML().load(values_yaml), values_yaml.splitlines()))


def _descriptions(values: CommentedMap, lines: list[str], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if text := _description(lines[: values.lc.key(key)[0]]):
            yield f"{prefix}{key}", text
        if isinstance(value, CommentedMap):
            yield from _descriptions(value, lines, f"{prefix}{key}.")


def _description(lines_above: list[str]) -> str:
    """Return the description at the end of these lines; empty if they end without one."""
    text: list[str] = []
    for line in takewhile(lambda line: line.lstrip().startswith("#"), reversed(lines_above)):
        part = line.strip().removeprefix("#").strip()
        text.insert(0, part.removeprefix("-- "))
        if part.startswith("-- "):
            return " ".join(text)
    return ""


def _at(path: str, whole: Json) -> Json | None:
    """Return the schema of a value; None inside of a map with arbitrary keys. Raises ValueError for an unknown value."""
    found = whole
    for name in path.split("."):
        if name not in found.get("properties", {}):
            if found.get("additionalProperties") is False and "patternProperties" not in found:
                raise ValueError(f"values.yaml: {path} is not in dev/codegen/chart/values.py")
            return None
        found = found["properties"][name]
    return found


def written_out(made: Json) -> Json:
    """Return pydantic's schema without references, titles and defaults, so that each value can have its own
    description.
    """
    return dict(_written_out(made, made.get("$defs", {})))


def _written_out(value: Any, definitions: Json) -> Any:
    if isinstance(value, list):
        return [_written_out(each, definitions) for each in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        target = definitions[value["$ref"].rsplit("/", 1)[1]]
        return _written_out({**target, **{key: each for key, each in value.items() if key != "$ref"}}, definitions)
    kept = {key: each for key, each in value.items() if key not in {*DROPPED, "$defs"}}
    if "properties" in kept:
        named = {name: _written_out(each, definitions) for name, each in kept.pop("properties").items()}
        return {**_written_out(kept, definitions), "properties": named}
    return {key: _written_out(each, definitions) for key, each in kept.items()}
