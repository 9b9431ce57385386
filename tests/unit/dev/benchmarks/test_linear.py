from dev.benchmarks.linear import Pair
from dev.benchmarks.scale.results import Run


def run(pods: int, cpu: float, status: float, *, peak: float = 90.0, note: str = "") -> Run:
    return Run("linear", "trainyard", 0, pods, status, status, status, cpu_s=cpu, rss_mib=peak, note=note)


def test_linear_growth_passes() -> None:
    assert Pair("one job", run(500, 1.0, 5.0), run(5000, 10.0, 50.0)).complaints() == []


def test_superlinear_growth_is_named() -> None:
    assert Pair("one job", run(500, 1.0, 5.0), run(5000, 21.0, 150.0)).complaints() == [
        "one job: CPU time a pod grows by 2.10 from 500 to 5,000 pods; 2.0 is allowed",
        "one job: time a pod grows by 3.00 from 500 to 5,000 pods; 2.0 is allowed",
    ]


def test_memory_has_a_limit() -> None:
    assert Pair("one job", run(500, 1.0, 5.0), run(5000, 10.0, 50.0, peak=151.0)).complaints() == [
        "one job: the peak of 5,000 pods is 151 MiB; 150 are allowed"
    ]


def test_unfinished_run_is_a_failure() -> None:
    pair = Pair("one job", run(500, 1.0, 5.0), Run("linear", "trainyard", 0, 5000, note="after 600 s nothing"))
    assert pair.complaints() == ["one job: after 600 s nothing"]
    assert "5,000 pods" not in pair.describe()
