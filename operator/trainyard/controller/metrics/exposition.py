"""The text of /metrics: rendered at most once a second, in a thread, and shared by all who ask."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

MAX_AGE_SECONDS = 1.0
"""A text of this age is rendered again."""


@dataclass(frozen=True, eq=False, slots=True)
class _Collected(Collector):
    """Metrics as they were at one moment."""

    families: Iterable[Metric]

    @override
    def collect(self) -> Iterable[Metric]:
        return self.families


@dataclass(slots=True)
class Exposition:
    """The metrics of a registry in Prometheus' text format."""

    registry: CollectorRegistry
    clock: Callable[[], float] = time.monotonic
    _collected_at: float = field(default=float("-inf"), init=False)
    _text: asyncio.Task[bytes] | None = field(default=None, init=False)

    async def read(self) -> bytes:
        """Return a text that is at most a second old, or that was rendered for this caller."""
        text = self._text
        if text is None or (text.done() and self.clock() - self._collected_at >= MAX_AGE_SECONDS):
            self._collected_at = self.clock()
            text = self._text = asyncio.create_task(self._render())
        # One of several that wait may give up.
        return await asyncio.shield(text)

    async def _render(self) -> bytes:
        # Collected in the event loop, which changes the caches; the text, most of the work, is made in a thread.
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected([*self.registry.collect()]))
        return await asyncio.to_thread(generate_latest, registry)
