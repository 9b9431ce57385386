"""The queries of a dashboard put to a Prometheus, as Grafana puts them: for tests, and for pictures."""

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
    """What a query has found under one set of labels: seconds since 1970 and values, those that are no number left out."""

    name: str
    labels: dict[str, str]
    points: Points


class Asked:
    """A Prometheus, with what was chosen on top of the dashboard.

    Args:
        url: where it answers.
        chosen: values of the dashboard's variables.
        seconds: the time that is shown.
        until: where it ends, in seconds since 1970; by default now, each time it is asked.
        step: seconds from one point to the next.
    """

    def __init__(
        self, url: str, chosen: Mapping[str, str], *, seconds: int = 600, until: float | None = None, step: int = 5
    ) -> None:
        self._url = url
        self._seconds, self._step, self._until = seconds, step, until
        self._known = {**chosen, "__range": f"{seconds}s", "__rate_interval": f"{max(4 * step, 30)}s"}

    def put(self, expr: str) -> str:
        """The query with its variables filled in."""
        return re.sub(r"\$(\w+)", lambda found: self._known[found[1]], expr)

    def series(self, panel: Panel, query: Query) -> list[Series]:
        """What there is to be seen of it: nothing where no point is a number.

        Raises:
            urllib.error.HTTPError: Prometheus does not understand it.
        """
        return self.found(query.expr, query.legend, now_alone=panel.kind is Kind.TABLE)

    def found(self, expr: str, legend: str = "", *, now_alone: bool = False) -> list[Series]:
        """Likewise, of any query. `now_alone`: one point, as a table has it."""
        # Points of all queries are those of the same moments.
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
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - the caller's own
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)
