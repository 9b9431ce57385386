"""The chart's schema follows the model, with the descriptions of `values.yaml`."""

import json
from typing import Any

import pytest

from dev.codegen.chart.readme import readme
from dev.codegen.chart.schema import descriptions, schema, written_out
from tests.unit.helm.chart import CHART
from trainyard.controller.bootstrap.settings import Settings

VALUES = (CHART / "values.yaml").read_text()


def made() -> dict[str, Any]:
    return schema(VALUES)


def test_committed_schema_is_current() -> None:
    assert json.loads((CHART / "values.schema.json").read_text()) == made(), "run `make generate`"


def test_committed_readme_is_current() -> None:
    assert (CHART / "README.md").read_text() == readme(CHART), "run `make generate`"


@pytest.mark.parametrize(
    ("value", "setting"),
    [
        ("settings/logLevel", "log_level"),
        ("settings/concurrentReconciles", "concurrent_reconciles"),
        ("settings/apiQps", "api_qps"),
        ("settings/apiBurst", "api_burst"),
        ("leaderElection/leaseDurationSeconds", "lease_duration_seconds"),
        ("networkPolicy/jobs/from/items", "job_peers/items"),
        ("watchNamespaces/items", "namespaces/items"),
    ],
)
def test_values_have_the_bounds_of_settings(value: str, setting: str) -> None:
    chart, operator = made(), written_out(Settings.model_json_schema())
    for name in value.split("/"):
        chart = chart[name] if name == "items" else chart["properties"][name]
    for name in setting.split("/"):
        operator = operator[name] if name == "items" else operator["properties"][name]
    bounds = [
        {k: v for k, v in each.items() if k not in ("default", "description", "title")} for each in (chart, operator)
    ]
    assert bounds[0] == bounds[1]


def test_schema_has_no_references() -> None:
    text = json.dumps(made())
    assert "$ref" not in text
    assert "$defs" not in text
    for path, description in descriptions(VALUES).items():
        assert description.strip(), path


def test_only_marked_comments_are_descriptions() -> None:
    text = "# of all\na:\n  # -- first\n  # and second.\n  b: 1\n  c: 2\n# -- last\nd: []\n"
    assert descriptions(text) == {"a.b": "first and second.", "d": "last"}


def test_unknown_value_is_named() -> None:
    with pytest.raises(ValueError, match=r"values.yaml: image.colour is not in dev/codegen/chart/values.py"):
        schema("image:\n  # -- of what?\n  colour: red\n")
