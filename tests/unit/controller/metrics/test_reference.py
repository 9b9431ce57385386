"""The reference page lists the registered metrics."""

import re
from pathlib import Path

from trainyard.controller.metrics import reference

ROOT = Path(__file__).parents[4]


def test_page_is_current() -> None:
    assert (ROOT / reference.PAGE).read_text() == reference.page(), "run `make generate`"


def test_metrics_follow_naming_conventions_and_have_help() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \| (.*?) \| (.+) \|$", reference.page(), re.MULTILINE)
    assert len(rows) > 20
    assert [name for name, kind, _, _ in rows if (kind == "counter") != name.endswith("_total")] == []
    assert {kind for _, kind, _, _ in rows} == {"counter", "gauge", "histogram"}
    assert "`verb`, `resource`" in next(
        labels for name, _, labels, _ in rows if name == "trainyard_forbidden_requests_total"
    )
    assert "`phase`, `framework`" in next(labels for name, _, labels, _ in rows if name == "trainyard_jobs")
