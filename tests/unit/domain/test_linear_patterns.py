"""Patterns that read the text of tenants take time in proportion to its length."""

import re
import time

import pytest

from trainyard.api.job_conditions import PLACE
from trainyard.controller.reconcile.refusals import BY_POLICY
from trainyard.domain.recovery.start_errors import LAST_WORDS, START_ERRORS
from trainyard.domain.wording import EXCEPTION, FRAME, VARYING

CHARACTERS = 4000
LONGER = 8


def seconds(pattern: re.Pattern[str], unit: str, characters: int) -> float:
    """Return the least time of three searches in a text that repeats `unit`, in which nothing matches to its end."""
    text, found = unit * (characters // len(unit)), list[float]()
    for _ in range(3):
        began = time.thread_time()
        assert all(match.end() < len(text) for match in pattern.finditer(text))
        found.append(time.thread_time() - began)
    return min(found)


@pytest.mark.parametrize(
    ("pattern", "unit"),
    [
        (EXCEPTION, "a."),
        (EXCEPTION, "Error."),
        (LAST_WORDS, "a/"),
        (LAST_WORDS, "exec a"),
        *(
            (error.words, unit)
            for error in START_ERRORS
            for unit in ("exec a", 'exec: "a', 'exec: "": stat a', "executable file `a")
        ),
        (BY_POLICY, "a."),
        (PLACE, " (pod a"),
        (PLACE, " (pod a on "),
        (FRAME, ' File "a'),
        (VARYING, 'pods "a'),
    ],
)
def test_a_pattern_takes_linear_time(pattern: re.Pattern[str], unit: str) -> None:
    """A quadratic one takes 64 times as long for a text that is 8 times as long."""
    assert seconds(pattern, unit, CHARACTERS * LONGER) < 30 * seconds(pattern, unit, CHARACTERS) + 0.001
