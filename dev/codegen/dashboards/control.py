"""The operator itself: whether it acts, whether it keeps up, and what the API server answers."""

from dev.codegen.dashboards.panels import BAD, GOOD, OPERATOR, POOR, Board, Panel, Query, Row, number

OURS = "and on (namespace, pod) trainyard_clock_offset_seconds"
"""Of processes that are operators of ours: kubelets and other controllers have metrics of the same names."""


def _p99(metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile(0.99, sum by ({labels}) (rate({metric}_bucket[$__rate_interval]) {OURS}))"


NOW = Row(
    "Now",
    (
        number("Operators", "Processes that answer Prometheus. Two are the rule, of which one acts.", "none", "count(trainyard_clock_offset_seconds)", base=BAD, limits={1: POOR, 2: GOOD}),
        number("Acting", "Processes that hold the Lease, or need none.", "none", "count(trainyard_unreadable_jobs) or vector(0)", base=BAD, limits={1: GOOD, 2: BAD}),
        number("Oldest watch", "Since when a watch has heard nothing, or the list of TrainingJobs is due. One that works is heard once a minute at least.", "s", "max(trainyard_watch_age_seconds)", limits={120: POOR, 300: BAD}),
        number("Waiting jobs", "Jobs that wait for their pass.", "none", 'sum(workqueue_depth{name="trainingjob"})', limits={100: POOR, 1000: BAD}),
        number("Unreadable jobs", "Their spec or status is none that the operator understands; the log says why.", "none", "max(trainyard_unreadable_jobs)", limits={1: BAD}),
        number("Connected agents", "That wait for a word of the process that acts.", "none", "sum(trainyard_connected_agents)"),
    ),
)  # fmt: skip
PASSES = Row(
    "Passes",
    (
        Panel(
            "Passes",
            "A second, by how they ended.",
            "ops",
            (
                Query(
                    'sum by (result) (rate(controller_runtime_reconcile_total{controller="trainingjob"}[$__rate_interval]))',
                    "{{result}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Length of a pass",
            "From taken to done: requests to the API server are most of it.",
            "s",
            (
                Query(f"{_p99('controller_runtime_reconcile_time_seconds')} >= 0", "p99"),
                Query(
                    f"histogram_quantile(0.5, sum by (le) (rate(controller_runtime_reconcile_time_seconds_bucket[$__rate_interval]) {OURS})) >= 0",
                    "median",
                ),
            ),
            limits={5: POOR},
        ),
        Panel(
            "Failed passes",
            "A second. Each is tried again, later each time.",
            "ops",
            (
                Query(
                    'sum by (pod) (rate(controller_runtime_reconcile_errors_total{controller="trainingjob"}[$__rate_interval]))',
                    "{{pod}}",
                ),
            ),
            limits={0.1: POOR},
        ),
        Panel(
            "Queue",
            "Jobs that wait, and those in a pass.",
            "short",
            (
                Query('sum(workqueue_depth{name="trainingjob"})', "waiting"),
                Query('sum(controller_runtime_active_workers{controller="trainingjob"})', "in a pass"),
            ),
            limits={1000: POOR},
        ),
        Panel(
            "Wait in the queue",
            "How long a job waits for its pass, and how long the first one has waited by now.",
            "s",
            (
                Query(f"{_p99('workqueue_queue_duration_seconds')} >= 0", "p99"),
                Query('max(workqueue_oldest_item_seconds{name="trainingjob"})', "the first one now"),
            ),
            limits={10: POOR, 60: BAD},
        ),
        Panel(
            "Longest pass under way",
            "A pass that takes minutes waits for the API server.",
            "s",
            (Query('max by (pod) (workqueue_longest_running_processor_seconds{name="trainingjob"})', "{{pod}}"),),
            limits={60: POOR, 120: BAD},
        ),
    ),
)
SERVER = Row(
    "API server",
    (
        Panel(
            "Requests",
            "A second, by verb and answer. 409 is somebody else's write in between; 429 and 5xx are tried again.",
            "reqps",
            (
                Query(
                    f"sum by (method, code) (rate(rest_client_requests_total[$__rate_interval]) {OURS})",
                    "{{method}} {{code}}",
                ),
            ),
        ),
        Panel(
            "Time to the answer",
            "Nine of ten, and 99 of 100, requests are answered sooner.",
            "s",
            (Query(f"{_p99('rest_client_request_duration_seconds', 'method')} >= 0", "{{method}}, p99"),),
            limits={1: POOR, 5: BAD},
        ),
        Panel(
            "Refused for want of a right",
            "In the last 15 minutes. The operator goes on by itself once the right is granted.",
            "short",
            (
                Query("sum(increase(trainyard_forbidden_requests_total[15m])) or vector(0)", "all together"),
                Query(
                    "sum by (verb, resource) (increase(trainyard_forbidden_requests_total[15m])) > 0",
                    "{{verb}} {{resource}}",
                    rare=True,
                ),
            ),
            limits={1: BAD},
        ),
        Panel(
            "Watches",
            "Since when each has heard nothing, or the list of TrainingJobs is due. One that works is heard once a minute at least.",
            "s",
            (Query("max by (pod, resource) (trainyard_watch_age_seconds)", "{{pod}} {{resource}}"),),
            limits={120: POOR, 300: BAD},
        ),
        Panel(
            "Clock",
            "By how much the API server's clock is ahead of the operator's machine: all times are the server's.",
            "s",
            (Query("max by (pod) (trainyard_clock_offset_seconds)", "{{pod}}"),),
            limits={60: POOR},
        ),
        Panel(
            "Leadership",
            "1 where a process leads. A change takes seconds after a clean stop, less than 20 after a crash.",
            "none",
            (
                Query(
                    "max by (pod) (leader_election_master_status) and on (pod) trainyard_clock_offset_seconds",
                    "{{pod}}",
                ),
                Query("max(trainyard_leader_transitions)", "changes so far"),
            ),
        ),
    ),
)
AGENTS = Row(
    "Agents and the process",
    (
        Panel(
            "Reports of agents",
            "A second, by what became of them. Refused ones are of other pods, of an earlier attempt, or none that can be read.",
            "reqps",
            (Query("sum by (result) (rate(trainyard_agent_reports_total[$__rate_interval]))", "{{result}}"),),
        ),
        Panel(
            "Calls of agents",
            "A second: each waits for a word for a minute, unless there is one sooner.",
            "reqps",
            (Query("sum by (result) (rate(trainyard_agent_calls_total[$__rate_interval]))", "{{result}}"),),
        ),
        Panel(
            "Agents",
            "That wait for a word, and those that have told how far they are.",
            "short",
            (
                Query("sum(trainyard_connected_agents)", "connected"),
                Query("sum(trainyard_reporting_workers)", "reporting"),
            ),
        ),
        Panel(
            "CPU",
            "Cores that each process uses. It works on one at most.",
            "short",
            (
                Query(
                    "sum by (pod) (rate(process_cpu_seconds_total[$__rate_interval]) and on (namespace, pod) trainyard_clock_offset_seconds)",
                    "{{pod}}",
                ),
            ),
            limits={0.8: POOR},
        ),
        Panel(
            "Memory",
            "Resident set of each process: some 100 MiB, and 15 KiB for each job.",
            "bytes",
            (
                Query(
                    "max by (pod) (process_resident_memory_bytes and on (namespace, pod) trainyard_clock_offset_seconds)",
                    "{{pod}}",
                ),
            ),
        ),
        Panel(
            "Pods and jobs",
            "That the operator knows of.",
            "short",
            (Query("max(trainyard_worker_pods)", "pods"), Query("sum(trainyard_jobs)", "jobs")),
        ),
    ),
)
BOARD = Board(
    OPERATOR,
    "Trainyard / Operator",
    "The operator: whether it acts, whether it keeps up, and what the API server answers.",
    (),
    (NOW, PASSES, SERVER, AGENTS),
)
