"""What all processes take a checkpoint for is the worst that one of them knows of it."""

import pytest

from trainyard_torch.checkpoint.outcome import Outcome, agreed

GOOD, KEPT = Outcome(), Outcome(in_memory=True)


@pytest.mark.parametrize(
    ("words", "together"),
    [
        ([GOOD, GOOD], GOOD),
        ([KEPT, KEPT], KEPT),
        ([KEPT, GOOD], GOOD),
        ([GOOD, Outcome(wrong="full"), Outcome(wrong="away")], Outcome(wrong="full")),
        ([Outcome(broken=True, wrong="reset"), GOOD], Outcome(broken=True, wrong="reset")),
        ([GOOD, Outcome(silent=True, wrong="no answer")], Outcome(silent=True, wrong="no answer")),
        ([GOOD, Outcome(behind="attempt 2 has begun")], Outcome(behind="attempt 2 has begun")),
        ([KEPT, Outcome(memory_error="no room")], Outcome(memory_error="no room")),
    ],
)
def test_the_worst_counts(words: list[Outcome], together: Outcome) -> None:
    assert agreed(words) == together
