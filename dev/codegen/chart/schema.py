"""`values.schema.json`, from the model of all values; what they mean stands in `values.yaml`, where people look for it."""

import re
from typing import Any, Final

from dev.codegen.chart.values import Chart

Json = dict[str, Any]
DRAFT: Final = "http://json-schema.org/draft-07/schema#"
"""Of all that Helm 3 and 4 read."""
DROPPED: Final = ("title", "default", "description")
KEY: Final = re.compile(r"( *)([A-Za-z]\w*):")


def schema(values_yaml: str) -> Json:
    """The schema.

    Args:
        values_yaml: the text of `values.yaml`.

    Raises:
        ValueError: it describes something that the model does not know.
    """
    whole = written_out(Chart.model_json_schema())
    for path, text in descriptions(values_yaml).items():
        if place := _at(path, whole):
            place["description"] = text
    return {"$schema": DRAFT, "title": "Values of the trainyard chart", **whole}


def descriptions(values_yaml: str) -> dict[str, str]:
    """What the comments `# -- …` say, by the dotted names of the values below them."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    said: list[str] = []
    for line in values_yaml.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            text = stripped.removeprefix("#").strip()
            if text.startswith("-- "):
                said = [text.removeprefix("-- ")]
            elif said:
                said.append(text)
        elif key := KEY.match(line):
            path = [*(each for each in path if each[0] < len(key[1])), (len(key[1]), key[2])]
            if said:
                found[".".join(name for _, name in path)] = " ".join(said)
            said = []
    return found


def _at(path: str, whole: Json) -> Json | None:
    """The schema of a value; None inside of what may have any keys. Raises ValueError."""
    place = whole
    for name in path.split("."):
        if name not in place.get("properties", {}):
            if place.get("additionalProperties") is False and "patternProperties" not in place:
                raise ValueError(f"values.yaml: {path} is not in dev/codegen/chart/values.py")
            return None
        place = place["properties"][name]
    return place


def written_out(made: Json) -> Json:
    """What pydantic has made, without references, so that each value can have its own description, and without what is said of classes."""
    return dict(_written_out(made, made.get("$defs", {})))


def _written_out(value: Any, definitions: Json) -> Any:
    if isinstance(value, list):
        return [_written_out(each, definitions) for each in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        meant = definitions[value["$ref"].rsplit("/", 1)[1]]
        return _written_out({**meant, **{key: each for key, each in value.items() if key != "$ref"}}, definitions)
    kept = {key: each for key, each in value.items() if key not in {*DROPPED, "$defs"}}
    if "properties" in kept:
        named = {name: _written_out(each, definitions) for name, each in kept.pop("properties").items()}
        return {**_written_out(kept, definitions), "properties": named}
    return {key: _written_out(each, definitions) for key, each in kept.items()}
