"""All jobs of a cluster: what runs, how much of it counts, and what goes wrong."""

from dev.codegen.dashboards.panels import (
    BAD,
    FLEET,
    GOOD,
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
    "Pending": PLAIN,
    "Running": GOOD,
    "Restarting": POOR,
    "Suspended": "text",
    "Complete": "purple",
    "Failed": BAD,
}


def _jobs(phase: str) -> str:
    return f'count(trainyard_job_phase{{{ALL}, phase="{phase}"}}) or vector(0)'


def _of_each(metric: str, more: str = "") -> str:
    return f"max by (namespace, name) (trainyard_job_{metric}{{{ALL}{more}}})"


def _quantile(share: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (increase(trainyard_{metric}_seconds_bucket[$__range])))"


PRODUCTIVE = f"sum(increase(trainyard_job_productive_seconds_total{{{ALL}}}[15m]))"
LOST = f"sum(increase(trainyard_job_lost_seconds_total{{{ALL}}}[15m]))"

NOW = Row(
    "Now",
    (
        number("Running", "Jobs of which all workers run.", "short", _jobs("Running")),
        number(
            "Pending",
            "Jobs that wait for workers: for room in the cluster, for images, for each other. `kubectl describe tj` says for what.",
            "short",
            _jobs("Pending"),
            limits={1: PLAIN},
        ),
        number(
            "Restarting",
            "Jobs whose next attempt is under way. As a rule it takes seconds.",
            "short",
            _jobs("Restarting"),
            limits={1: POOR},
        ),
        number("Failed", "Jobs that failed for good and are still there.", "short", _jobs("Failed"), limits={1: BAD}),
        number(
            "Accelerators",
            "GPUs and others that the pods of jobs hold; 0 too where there are none.",
            "short",
            f"sum(trainyard_job_accelerators{{{ALL}}}) or vector(0)",
        ),
        number(
            "Goodput",
            "Share of the time of the last 15 minutes that went into steps that counted, of jobs that tell their steps.",
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
            "Jobs that have not ended",
            "Each with how far it is and how much of its time counted. A click on its name leads to its own dashboard.",
            "short",
            (
                Query(_of_each("workers"), "Workers"),
                Query(_of_each("step"), "Step"),
                Query(f"{_of_each('step')} / {_of_each('total_steps')}", "Done"),
                Query(_of_each("step_seconds"), "Step takes"),
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
            units={"Done": "percentunit", "Step takes": "s", "Goodput": "percentunit"},
        ),
        Panel(
            "Jobs by phase",
            "How many there are in each phase.",
            "short",
            (Query(f"count by (phase) (trainyard_job_phase{{{ALL}}})", "{{phase}}"),),
            stacked=True,
            states=PHASES,
        ),
        Panel(
            "Workers by namespace",
            "Workers that the groups of jobs have, those that are being restarted included.",
            "short",
            (Query(f"sum by (namespace) (trainyard_job_workers{{{ALL}}})", "{{namespace}}"),),
            stacked=True,
        ),
        Panel(
            "Jobs that ended",
            "By how, and why; in the time that is shown.",
            "short",
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
    "Where time goes",
    (
        Panel(
            "Goodput",
            "Share of the time of five minutes that went into steps that counted, by namespace.",
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
            "Seconds a second, all jobs together, by what took them: the start of jobs, recoveries, steps done again, and the rest.",
            "s",
            (Query(f"sum by (reason) (rate(trainyard_job_lost_seconds_total{{{ALL}}}[5m]))", "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Accelerator hours",
            "Of each namespace, in the time that is shown.",
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
            "Attempts a minute that ended before their time. Failures are charged to `maxRestarts`, disruptions and resizes are not.",
            "cpm",
            (Query("sum by (cause) (rate(trainyard_restarts_total[$__rate_interval])) * 60", "{{cause}}"),),
            limits={1: POOR},
        ),
        Panel(
            "Recoveries by scope",
            "New attempts a minute by the means: processes in their pods, containers, the pods that failed, all pods.",
            "cpm",
            (Query("sum by (scope) (rate(trainyard_recoveries_total[$__rate_interval])) * 60", "{{scope}}"),),
        ),
        Panel(
            "Jobs that restart most",
            "Attempts that ended by a failure or disruption in the last hour, of the ten jobs with most.",
            "short",
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
            "From the end of a worker to when all workers of the next attempt run; over the time that is shown, by scope.",
            "s",
            (
                Query(f"{_quantile(0.5, 'recovery', 'scope')} >= 0", "{{scope}}, median"),
                Query(f"{_quantile(0.95, 'recovery')} >= 0", "p95"),
            ),
            limits={60: POOR},
        ),
        Panel(
            "Time to notice",
            "From the end of a worker to the decision what to do about it.",
            "s",
            (
                Query(f"{_quantile(0.5, 'detection')} >= 0", "median"),
                Query(f"{_quantile(0.95, 'detection')} >= 0", "p95"),
            ),
            limits={30: POOR},
        ),
        Panel(
            "Time to start",
            "From when a group was to start to when all its workers ran; recoveries left out.",
            "s",
            (Query(f"{_quantile(0.5, 'startup')} >= 0", "median"), Query(f"{_quantile(0.95, 'startup')} >= 0", "p95")),
            limits={300: POOR},
        ),
        Panel(
            "Slow ranks",
            "Ranks that have been slower than the others of their job for a minute: `status.stragglers` names them and their nodes.",
            "short",
            (
                Query(f"sum(trainyard_job_straggling_ranks{{{ALL}}}) or vector(0)", "all together"),
                Query(_of_each("straggling_ranks"), "{{namespace}}/{{name}}", rare=True),
            ),
            limits={1: POOR},
            width=12,
        ),
        Panel(
            "Nodes that jobs keep away from",
            "They have hurt a job twice: `status.suspectNodes` says how and until when. A node that several jobs avoid is broken.",
            "short",
            (
                Query(f"sum(trainyard_job_avoided_nodes{{{ALL}}}) or vector(0)", "all together"),
                Query(_of_each("avoided_nodes"), "{{namespace}}/{{name}}", rare=True),
            ),
            limits={1: POOR},
            width=12,
        ),
    ),
)
BOARD = Board(
    FLEET,
    "Trainyard / Fleet",
    "All TrainingJobs: what runs, how much of its time counts, and what goes wrong.",
    (Variable("namespace", "Namespace", "label_values(trainyard_job_phase, namespace)"),),
    (NOW, JOBS, TIME, FAULTS),
)
