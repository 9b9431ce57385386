import pytest

from dev.benchmarks.frameworks.ratios import ratios
from dev.benchmarks.recovery.results import Row


def row(system: str, seconds: float | None, fault: str = "mpi-kill") -> Row:
    return Row(fault, system, 3, 0, seconds, seconds, 1.0, {})


@pytest.mark.parametrize(
    ("ours", "theirs", "times", "ahead", "text"),
    [
        (2.0, 12.0, 6.0, True, "mpi-kill: mpi-operator takes 6.0 times as long"),
        (3.0, 1.5, 0.5, False, "mpi-kill: mpi-operator takes 0.5 times as long"),
        (2.0, 2.0, 1.0, False, "mpi-kill: mpi-operator takes 1.0 times as long"),
        (2.0, None, None, True, "mpi-kill: mpi-operator never recovers"),
        (None, 2.0, None, False, "mpi-kill: trainyard never recovers"),
        (None, None, None, False, "mpi-kill: trainyard never recovers"),
    ],
)
def test_ratio_of_the_peer_to_us(
    ours: float | None, theirs: float | None, times: float | None, text: str, *, ahead: bool
) -> None:
    (found,) = ratios([row("trainyard", ours), row("mpi-operator", theirs)])
    assert (found.times, found.ahead, str(found)) == (times, ahead, text)


def test_a_fault_of_one_system_has_no_ratio() -> None:
    assert ratios([row("trainyard", 1.0), row("kuberay", 2.0, "ray-kill")]) == []
