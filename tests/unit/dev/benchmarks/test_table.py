from dev.benchmarks.scale.results import Row
from dev.benchmarks.scale.table import shortfalls, table

PODS = {"a": 500, "e": 500, "f": 1000}


def row(system: str, created: float | None, *, case: str = "a", cpu: float = 1.0, **calls: int) -> Row:
    named = {name.replace("_", " "): number for name, number in calls.items()}
    return Row(case, system, created, created, created, cpu, 87.4, named, "" if created else "too slow")


def test_table_shows_ratios_to_limit_and_to_trainyard() -> None:
    rows = [
        row("trainyard", 2.0, POST_pods=1500),
        row("raw-with-jobs", 1.6),
        row("jobset", 5.0),
        row("training-operator", None),
    ]
    assert table(rows, {"a": "1 job"}, PODS).splitlines() == [
        "(a) 1 job",
        "  system             created s  x limit  x ours  running s  status s  CPU s  ms/pod  peak MiB  calls",
        "  trainyard               2.00     1.25    1.00       2.00      2.00   1.00    2.00        87  POST pods 1,500",
        "  raw-with-jobs           1.60     1.00    0.80       1.60      1.60   1.00    2.00        87  -",
        "  jobset                  5.00     3.12    2.50       5.00      5.00   1.00    2.00        87  -",
        "  training-operator          -        -       -          -         -   1.00    2.00        87  -",
        "  training-operator: too slow",
    ]


def test_figures_within_reach_are_not_complained_of() -> None:
    rows = [row("trainyard", 2.0), row("raw-with-jobs", 1.6), row("training-operator-tuned", 5.0), row("jobset", None)]
    assert shortfalls(rows, PODS) == []


def test_each_figure_that_is_missed_has_its_sentence() -> None:
    rows = [row("trainyard", 2.1, cpu=3.0), row("raw-with-jobs", 1.6), row("training-operator-tuned", 2.1, cpu=2.9)]
    assert shortfalls(rows, PODS) == [
        "(a) created takes 1.31 times as long as raw-with-jobs; it may take 1.25 times",
        "(a) created_s is 2.10, which is not ahead of training-operator-tuned with 2.10",
        "(a) running_s is 2.10, which is not ahead of training-operator-tuned with 2.10",
        "(a) status_s is 2.10, which is not ahead of training-operator-tuned with 2.10",
        "(a) CPU per pod is above that of training-operator-tuned",
    ]


def test_idle_operator_writes_only_its_lease() -> None:
    assert shortfalls([row("trainyard", None, case="f", GET=3, PUT_leases=30)], PODS) == []
    assert shortfalls([row("trainyard", None, case="f", POST_events=2)], PODS) == [
        "(f) 2 x POST events, though nothing happened"
    ]
