"""Run the queries of a dashboard against a Prometheus as Grafana does, for tests and for pictures."""

from __future__ import annotations

import json
import math
import re
import time
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, NamedTuple

from dev.codegen.dashboards.panels import Kind, Panel, Query

if TYPE_CHECKING:
    from collections.abc import Mapping

Points = list[tuple[float, float]]


class Series(NamedTuple):
    """The result of a query under one set of labels: seconds since 1970 and finite values."""

    name: str
    labels: dict[str, str]
    points: Points


class Asked:
    """A Prometheus, with the chosen values of the dashboard's variables.

    Args:
        url: its address.
        chosen: values of the dashboard's variables.
        seconds: the time range.
        until: the end of the range, in seconds since 1970; by default the time of each query.
        step: seconds between two points.
    """

    def __init__(
        self, url: str, chosen: Mapping[str, str], *, seconds: int = 600, until: float | None = None, step: int = 5
    ) -> None:
        self._url = url
        self._seconds, self._step, self._until = seconds, step, until
        self._known = {**chosen, "__range": f"{seconds}s", "__rate_interval": f"{max(4 * step, 30)}s"}

    def put(self, expr: str) -> str:
        """Return the query with its variables filled in."""
        return re.sub(r"\$(\w+)", lambda found: self._known[found[1]], expr)

    def series(self, panel: Panel, query: Query) -> list[Series]:
        """Return the series of the panel's query; empty if no point is a finite number.

        Raises:
            urllib.error.HTTPError: Prometheus refuses the query.
        """
        return self.found(query.expr, query.legend, now_alone=panel.kind is Kind.TABLE)

    def found(self, expr: str, legend: str = "", *, now_alone: bool = False) -> list[Series]:
        """Return the series of any query. `now_alone`: a single point, as in a table."""
        # All queries have points at the same moments.
        now = (self._until or time.time()) // self._step * self._step
        when = {"start": str(now - self._seconds), "end": str(now), "step": str(self._step)}
        what, when = ("query", {"time": str(now)}) if now_alone else ("query_range", when)
        made = []
        for each in self._get(what, {"query": self.put(expr), **when}):
            points = [(at, float(value)) for at, value in each.get("values") or [each["value"]]]
            known = [(at, value) for at, value in points if math.isfinite(value)]
            if known:
                made.append(Series(_named(legend, each["metric"]), each["metric"], known))
        return made

    def _get(self, what: str, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        address = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - the caller chose the address
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)
