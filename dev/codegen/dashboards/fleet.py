"""The dashboard of all jobs in a cluster: state, goodput and failures."""

from dev.codegen.dashboards.panels import (
    BAD,
    COUNT,
    FLEET,
    GOOD,
    PER_SECOND,
    PLAIN,
    POOR,
    Board,
    Kind,
    Panel,
    Query,
    Row,
    Variable,
    number,
)

ALL = 'namespace=~"$namespace"'
PHASES = {
    "Queued": "super-light-blue",
    "Pending": PLAIN,
    "Running": GOOD,
    "Restarting": POOR,
    "Suspended": "text",
    "Complete": "purple",
    "Failed": BAD,
}


def _jobs(phase: str) -> str:
    return f'count(trainyard_job_phase{{{ALL}, phase="{phase}"}}) or vector(0)'


def _total_and_each(metric: str) -> tuple[Query, Query]:
    """Return the queries of the sum of a metric over all jobs, and of each job."""
    return (
        Query(f"sum(trainyard_job_{metric}{{{ALL}}}) or vector(0)", "total"),
        Query(_of_each(metric), "{{namespace}}/{{name}}", rare=True),
    )


def _of_each(metric: str, more: str = "") -> str:
    return f"max by (namespace, name) (trainyard_job_{metric}{{{ALL}{more}}})"


def _quantile(share: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (increase(trainyard_{metric}_seconds_bucket[$__range])))"


PRODUCTIVE = f"sum(increase(trainyard_job_productive_seconds_total{{{ALL}}}[15m]))"
LOST = f"sum(increase(trainyard_job_lost_seconds_total{{{ALL}}}[15m]))"

NOW = Row(
    "Overview",
    (
        number("Running", "Jobs whose workers all run.", COUNT, _jobs("Running")),
        number(
            "Pending",
            "Jobs that wait for workers, for example for free nodes or images. `kubectl describe tj` has the reason.",
            COUNT,
            _jobs("Pending"),
            limits={1: PLAIN},
        ),
        number(
            "Restarting",
            "Jobs that are starting their next attempt. It usually takes seconds.",
            COUNT,
            _jobs("Restarting"),
            limits={1: POOR},
        ),
        number("Failed", "Failed jobs that still exist.", COUNT, _jobs("Failed"), limits={1: BAD}),
        number(
            "Accelerators",
            "GPUs and other accelerators that the pods of jobs hold.",
            COUNT,
            f"sum(trainyard_job_accelerators{{{ALL}}}) or vector(0)",
        ),
        number(
            "Goodput",
            "Share of the last 15 minutes that produced steps that were kept, for jobs that report steps.",
            "percentunit",
            f"{PRODUCTIVE} / ({PRODUCTIVE} + {LOST})",
            base=BAD,
            limits={0.7: POOR, 0.9: GOOD},
            top=1.0,
        ),
    ),
)
JOBS = Row(
    "Jobs",
    (
        Panel(
            "Unfinished jobs",
            "Progress and goodput of each job. Its name links to its own dashboard.",
            COUNT,
            (
                Query(_of_each("workers"), "Workers"),
                Query(_of_each("step"), "Step"),
                Query(f"{_of_each('step')} / {_of_each('total_steps')}", "Progress"),
                Query(_of_each("step_seconds"), "Step time"),
                Query(_of_each("goodput_ratio"), "Goodput"),
                Query(
                    f"sum by (namespace, name) (trainyard_job_restarts_total{{{ALL}}}) and on (namespace, name) trainyard_job_workers",
                    "Restarts",
                ),
            ),
            Kind.TABLE,
            width=24,
            height=9,
            columns={"namespace": "Namespace", "name": "Job"},
            units={"Progress": "percentunit", "Step time": "s", "Goodput": "percentunit"},
        ),
        Panel(
            "Jobs by phase",
            "Number of jobs in each phase.",
            COUNT,
            (Query(f"count by (phase) (trainyard_job_phase{{{ALL}}})", "{{phase}}"),),
            stacked=True,
            states=PHASES,
        ),
        Panel(
            "Workers by namespace",
            "Workers in the groups of jobs, including those that restart.",
            COUNT,
            (Query(f"sum by (namespace) (trainyard_job_workers{{{ALL}}})", "{{namespace}}"),),
            stacked=True,
        ),
        Panel(
            "Finished jobs",
            "By result and reason, within the time range.",
            COUNT,
            (
                Query(
                    "sum by (result, reason) (increase(trainyard_jobs_finished_total[$__range]))",
                    "{{result}}: {{reason}}",
                ),
            ),
        ),
    ),
)
TIME = Row(
    "Goodput and lost time",
    (
        Panel(
            "Goodput",
            "Share of five minutes that produced steps that were kept, by namespace.",
            "percentunit",
            (
                Query(
                    f"sum by (namespace) (rate(trainyard_job_productive_seconds_total{{{ALL}}}[5m])) / "
                    f"(sum by (namespace) (rate(trainyard_job_productive_seconds_total{{{ALL}}}[5m])) "
                    f"+ sum by (namespace) (rate(trainyard_job_lost_seconds_total{{{ALL}}}[5m])))",
                    "{{namespace}}",
                ),
            ),
            base=BAD,
            limits={0.7: POOR, 0.9: GOOD},
            top=1.0,
        ),
        Panel(
            "Lost time",
            "Lost seconds per second of all jobs, by reason: startup, recovery, repeated steps, and other.",
            PER_SECOND,
            (Query(f"sum by (reason) (rate(trainyard_job_lost_seconds_total{{{ALL}}}[5m]))", "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Accelerator hours",
            "By namespace, within the time range.",
            "h",
            (
                Query(
                    f"sum by (namespace) (sum_over_time(trainyard_job_accelerators{{{ALL}}}[$__range:1m])) / 60",
                    "{{namespace}}",
                ),
            ),
        ),
    ),
)
FAULTS = Row(
    "Faults",
    (
        Panel(
            "Restarts by cause",
            "Restarts per minute. Failures count against `maxRestarts`; disruptions and resizes do not.",
            "cpm",
            (Query("sum by (cause) (rate(trainyard_restarts_total[$__rate_interval])) * 60", "{{cause}}"),),
            limits={1: POOR},
        ),
        Panel(
            "Recoveries by restart scope",
            "New attempts per minute by what was restarted: processes, containers, the failed pods, or the whole group.",
            "cpm",
            (Query("sum by (scope) (rate(trainyard_recoveries_total[$__rate_interval])) * 60", "{{scope}}"),),
        ),
        Panel(
            "Jobs with most restarts",
            "Restarts by failures and disruptions in the last hour, of the ten jobs with the most.",
            COUNT,
            (
                Query(
                    f'topk(10, sum by (namespace, name) (increase(trainyard_job_restarts_total{{{ALL}, cause=~"failure|disruption"}}[1h])) > 0)',
                    "{{namespace}}/{{name}}",
                ),
            ),
            limits={5: POOR},
        ),
        Panel(
            "Time to recover",
            "Time from a worker failure to when all workers of the next attempt run, by restart scope.",
            "s",
            (
                Query(f"{_quantile(0.5, 'recovery', 'scope')} >= 0", "{{scope}}, median"),
                Query(f"{_quantile(0.95, 'recovery')} >= 0", "p95"),
            ),
            limits={60: POOR},
        ),
        Panel(
            "Time to detect",
            "Time from a worker failure to the recovery decision.",
            "s",
            (
                Query(f"{_quantile(0.5, 'failure_detection')} >= 0", "median"),
                Query(f"{_quantile(0.95, 'failure_detection')} >= 0", "p95"),
            ),
            limits={30: POOR},
        ),
        Panel(
            "Time to start",
            "Time from the start of a group to when all its workers run, without recoveries.",
            "s",
            (Query(f"{_quantile(0.5, 'startup')} >= 0", "median"), Query(f"{_quantile(0.95, 'startup')} >= 0", "p95")),
            limits={300: POOR},
        ),
        Panel(
            "Straggling ranks",
            "Ranks that have been slower than the others of their job for a minute. `status.stragglers` names them and their nodes.",
            COUNT,
            _total_and_each("straggling_ranks"),
            limits={1: POOR},
            width=8,
        ),
        Panel(
            "Avoided nodes",
            "Nodes that failed a job twice. `status.suspectNodes` has details. A node that several jobs avoid is probably broken.",
            COUNT,
            _total_and_each("avoided_nodes"),
            limits={1: POOR},
            width=8,
        ),
        Panel(
            "Suspected hangs",
            "Jobs that report no progress and of which no rank does anything. The stacks are in the logs of the pods.",
            COUNT,
            _total_and_each("hang_suspected"),
            limits={1: BAD},
            width=8,
        ),
        Panel(
            "Nodes that ended most attempts",
            "Failures that point to a node, over all jobs that remember it for a day. Look at the drivers, the network and the disk of the first ones.",
            COUNT,
            (Query("topk(10, max by (node) (trainyard_node_failures))", "{{node}}", rare=True),),
            limits={2: POOR},
            width=24,
        ),
    ),
)
BOARD = Board(
    FLEET,
    "Trainyard / Fleet",
    "All TrainingJobs: state, goodput and failures.",
    (Variable("namespace", "Namespace", "label_values(trainyard_job_phase, namespace)"),),
    (NOW, JOBS, TIME, FAULTS),
)
