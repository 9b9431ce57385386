"""`null` for each value of the chart: the chart renders without it, or the schema refuses it. No template fails."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.unit.helm.chart import CHART, Chart, RefusedError
from trainyard.controller.bootstrap.settings import Settings

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
EVERYTHING = {
    "agent": {"imageVolume": True},
    "coordinator": {"tls": {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}},
    "networkPolicy": {
        "enabled": True,
        "jobs": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]},
    },
    "admission": {"enabled": True, "podSecurity": "restricted", "guardServiceAccounts": True},
    "metrics": {
        "serviceMonitor": {"enabled": True, "interval": "30s", "scrapeTimeout": "10s"},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
}


def paths(values: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value, and of each map of values."""
    for name, value in values.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from paths(value, (*before, name))


def without(values: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the values with `null` at this path."""
    first, *rest = path
    return {**values, first: without(values.get(first) or {}, tuple(rest)) if rest else None}


def nothings(manifest: Any, path: str = "") -> Iterator[str]:
    """Yield each empty field of a manifest, and each text that Go writes for a missing value."""
    if isinstance(manifest, dict):
        for name, each in manifest.items():
            yield from nothings(each, f"{path}.{name}")
    elif isinstance(manifest, list):
        for index, each in enumerate(manifest):
            yield from nothings(each, f"{path}[{index}]")
    elif manifest is None or (isinstance(manifest, str) and ("<nil>" in manifest or "%!" in manifest)):
        yield f"{path}: {manifest}"


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
@pytest.mark.parametrize("path", list(paths(VALUES)), ids=".".join)
def test_removed_value_is_optional_or_refused(
    chart: Chart, values: Mapping[str, Any], path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        release = chart.render(without(values, path))
    except RefusedError as error:
        sentence = str(error)
        assert f"missing property '{path[-1]}'" in sentence or f"{path[0]}.{'.'.join(path[1:])}" in sentence, sentence
        assert "error calling" not in sentence
        assert "nil pointer" not in sentence
        return
    errors = [
        nothing
        for manifest in release.manifests
        if manifest["kind"] != "CustomResourceDefinition"
        for nothing in nothings(manifest, f"{manifest['kind']} {manifest['metadata']['name']}")
    ]
    assert errors == []
    for name, value in release.environment().items():
        monkeypatch.setenv(name, value or "a-pod")
    Settings()
