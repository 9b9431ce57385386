"""The schema of the chart's values is that of the model, and says what `values.yaml` says."""

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


def test_the_committed_schema_is_current() -> None:
    assert json.loads((CHART / "values.schema.json").read_text()) == made(), "run `make generate`"


def test_the_committed_readme_is_what_helm_docs_makes() -> None:
    assert (CHART / "README.md").read_text() == readme(CHART), "run `make generate`"


@pytest.mark.parametrize(
    ("value", "setting"),
    [
        ("settings/logLevel", "log_level"),
        ("settings/workers", "workers"),
        ("settings/apiQps", "api_qps"),
        ("settings/apiBurst", "api_burst"),
        ("leaderElection/leaseSeconds", "lease_seconds"),
        ("networkPolicy/jobs/from/items", "job_peers/items"),
        ("watchNamespaces/items", "namespaces/items"),
    ],
)
def test_chart_bounds_match_the_operators_settings(value: str, setting: str) -> None:
    chart, operator = made(), written_out(Settings.model_json_schema())
    for name in value.split("/"):
        chart = chart[name] if name == "items" else chart["properties"][name]
    for name in setting.split("/"):
        operator = operator[name] if name == "items" else operator["properties"][name]
    bounds = [
        {k: v for k, v in each.items() if k not in ("default", "description", "title")} for each in (chart, operator)
    ]
    assert bounds[0] == bounds[1]


def test_schema_is_inlined_and_describes_every_value() -> None:
    text = json.dumps(made())
    assert "$ref" not in text
    assert "$defs" not in text
    for path, said in descriptions(VALUES).items():
        assert said.strip(), path


def test_marked_comments_become_one_description() -> None:
    text = "# of all\na:\n  # -- first\n  # and second.\n  b: 1\n  c: 2\n# -- last\nd: []\n"
    assert descriptions(text) == {"a.b": "first and second.", "d": "last"}


def test_value_missing_from_the_model_is_named() -> None:
    with pytest.raises(ValueError, match=r"values.yaml: image.colour is not in dev/codegen/chart/values.py"):
        schema("image:\n  # -- of what?\n  colour: red\n")
