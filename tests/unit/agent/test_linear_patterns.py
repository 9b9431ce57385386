"""The agent's patterns take time in proportion to the length of what a program prints."""

import importlib
import pkgutil
import re
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import trainyard_agent
from trainyard_agent.failure_cause import MARKS
from trainyard_agent.program import PYTHON
from trainyard_agent.protocol import NAME

ASCII = st.characters(min_codepoint=9, max_codepoint=126)
WHOLE_NAMES = {PYTHON, NAME}
"""Patterns that a whole name must match: the agent calls no search with them."""
LONG, LONGER = 2_000, 16_000
"""Characters. The agent keeps 32 KiB of each rank's output."""


def patterns() -> Iterator[tuple[str, re.Pattern[str]]]:
    """Return all patterns of the agent with their names."""
    for mark in MARKS:
        yield f"trainyard_agent.failure_cause.{mark.cause}", mark.words
    for module in pkgutil.iter_modules(trainyard_agent.__path__, "trainyard_agent."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, re.Pattern) and value not in WHOLE_NAMES:
                is_text = isinstance(value.pattern, str)
                yield f"{module.name}.{name}", value if is_text else re.compile(value.pattern.decode())


def starts(pattern: re.Pattern[str]) -> list[str]:
    """Return the starts of texts that match: repeated, they match in part again and again."""
    found = set[str]()

    @settings(max_examples=10, derandomize=True, database=None, deadline=None, suppress_health_check=[*HealthCheck])
    @given(st.from_regex(pattern, alphabet=ASCII))
    def collect(text: str) -> None:
        found.update(text[:end] for end in range(1, min(len(text), 48) + 1))

    collect()
    return sorted(found)


def seconds(pattern: re.Pattern[str], unit: str, characters: int, runs: int = 1) -> float:
    """Return the least time of some searches in a text of that length."""
    text, took = unit * (characters // len(unit)), list[float]()
    for _ in range(runs):
        began = time.thread_time()
        for _match in pattern.finditer(text):
            pass
        took.append(time.thread_time() - began)
    return min(took)


def is_linear(pattern: re.Pattern[str]) -> bool:
    """Return whether 8 times the text takes less than 30 times as long; a quadratic pattern takes 64 times as long."""
    slowest = sorted(starts(pattern), key=lambda unit: seconds(pattern, unit, LONG))[-6:]
    return all(seconds(pattern, unit, LONGER, 3) < 30 * seconds(pattern, unit, LONG, 3) + 0.002 for unit in slowest)


@pytest.mark.parametrize("pattern", [pytest.param(pattern, id=name) for name, pattern in patterns()])
def test_agent_patterns_take_linear_time(pattern: re.Pattern[str]) -> None:
    assert is_linear(pattern)


@pytest.mark.parametrize("pattern", [r"a: .*b", r"\[a\] [^:\n]+: b"])
def test_quadratic_pattern_is_recognised(pattern: str) -> None:
    assert not is_linear(re.compile(pattern))
