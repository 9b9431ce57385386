"""The dashboard of the operator: leadership, throughput, and the API server's responses."""

from dev.codegen.dashboards.panels import BAD, CORES, COUNT, GOOD, OPERATOR, POOR, Board, Panel, Query, Row, number

OURS = "and on (namespace, pod) trainyard_clock_offset_seconds"
"""Only operators of ours: kubelets and other controllers have metrics of the same names."""


def _p99(metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile(0.99, sum by ({labels}) (rate({metric}_bucket[$__rate_interval]) {OURS}))"


NOW = Row(
    "Overview",
    (
        number("Operator replicas", "Processes that answer Prometheus: usually two, a leader and a standby.", COUNT, "count(trainyard_clock_offset_seconds)", base=BAD, limits={1: POOR, 2: GOOD}),
        number("Leaders", "Processes that hold the Lease, or run without leader election. One is healthy.", COUNT, "count(trainyard_invalid_jobs) or vector(0)", base=BAD, limits={1: GOOD, 2: BAD}),
        number("Oldest watch event", "Time since the API server last answered a watch, or since the list of TrainingJobs was due. A healthy one is below a minute.", "s", "max(trainyard_watch_age_seconds)", limits={120: POOR, 300: BAD}),
        number("Work queue depth", "Jobs that wait to be reconciled.", COUNT, 'sum(workqueue_depth{name="trainingjob"})', limits={100: POOR, 1000: BAD}),
        number("Invalid jobs", "Jobs whose spec or status the operator cannot read; the log has the reason.", COUNT, "max(trainyard_invalid_jobs)", limits={1: BAD}),
        number("Connected agents", "Agents with an open long-poll request to the leader.", COUNT, "sum(trainyard_connected_agents)"),
    ),
)  # fmt: skip
RECONCILES = Row(
    "Reconciles",
    (
        Panel(
            "Reconcile rate",
            "Reconciles per second, by result.",
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
            "Reconcile duration",
            "Time of one reconcile. Requests to the API server are most of it.",
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
            "Reconcile errors",
            "Failed reconciles per second. They are retried with exponential backoff.",
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
            "Work queue depth",
            "Waiting jobs, and jobs that are being reconciled.",
            COUNT,
            (
                Query('sum(workqueue_depth{name="trainingjob"})', "waiting"),
                Query('sum(controller_runtime_active_workers{controller="trainingjob"})', "reconciling"),
            ),
            limits={1000: POOR},
        ),
        Panel(
            "Work queue latency",
            "How long jobs wait to be reconciled, and how long the oldest one has waited.",
            "s",
            (
                Query(f"{_p99('workqueue_queue_duration_seconds')} >= 0", "p99"),
                Query('max(workqueue_oldest_item_seconds{name="trainingjob"})', "oldest now"),
            ),
            limits={10: POOR, 60: BAD},
        ),
        Panel(
            "Longest running reconcile",
            "A reconcile that takes minutes waits for the API server.",
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
            "Request rate",
            "Requests per second, by verb and status code. 409 is a write conflict; 429 and 5xx are retried.",
            "reqps",
            (
                Query(
                    f"sum by (method, code) (rate(rest_client_requests_total[$__rate_interval]) {OURS})",
                    "{{method}} {{code}}",
                ),
            ),
        ),
        Panel(
            "Request latency",
            "99th percentile by verb.",
            "s",
            (Query(f"{_p99('rest_client_request_duration_seconds', 'method')} >= 0", "{{method}}, p99"),),
            limits={1: POOR, 5: BAD},
        ),
        Panel(
            "Permission denied",
            "Refused requests of the last 15 minutes. The operator continues once the permission is granted.",
            COUNT,
            (
                Query("sum(increase(trainyard_forbidden_requests_total[15m])) or vector(0)", "total"),
                Query(
                    "sum by (verb, resource) (increase(trainyard_forbidden_requests_total[15m])) > 0",
                    "{{verb}} {{resource}}",
                    rare=True,
                ),
            ),
            limits={1: BAD},
        ),
        Panel(
            "Time since the last watch event",
            "Time since the last event of each watch, or since the next list of TrainingJobs was due. A healthy watch receives an event at least once a minute.",
            "s",
            (Query("max by (pod, resource) (trainyard_watch_age_seconds)", "{{pod}} {{resource}}"),),
            limits={120: POOR, 300: BAD},
        ),
        Panel(
            "Clock skew",
            "How far the API server's clock is ahead of the operator's node. The operator uses the server's clock.",
            "s",
            (Query("max by (pod) (trainyard_clock_offset_seconds)", "{{pod}}"),),
            bottom=None,
            limits={60: POOR},
        ),
        Panel(
            "Leadership",
            "1 for the leader. A failover takes seconds after a clean stop, and less than 20 seconds after a crash.",
            COUNT,
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
    "Agents and process",
    (
        Panel(
            "Progress reports of agents",
            "Progress reports per second, by result. Rejected ones are from unknown pods or earlier attempts, or are malformed.",
            "reqps",
            (Query("sum by (result) (rate(trainyard_agent_reports_total[$__rate_interval]))", "{{result}}"),),
        ),
        Panel(
            "Sync requests of agents",
            "Long-poll requests per second. Each one lasts a minute unless there is an update sooner.",
            "reqps",
            (Query("sum by (result) (rate(trainyard_agent_sync_requests_total[$__rate_interval]))", "{{result}}"),),
        ),
        Panel(
            "Agents",
            "Connected agents, and workers that have reported progress.",
            COUNT,
            (
                Query("sum(trainyard_connected_agents)", "connected"),
                Query("sum(trainyard_reporting_workers)", "reporting"),
            ),
        ),
        Panel(
            "CPU usage",
            "Cores that each process uses. It can use one at most.",
            CORES,
            (
                Query(
                    "sum by (pod) (rate(process_cpu_seconds_total[$__rate_interval]) and on (namespace, pod) trainyard_clock_offset_seconds)",
                    "{{pod}}",
                ),
            ),
            limits={0.8: POOR},
        ),
        Panel(
            "Memory usage",
            "Resident set of each process: about 100 MiB, and 15 KiB per job.",
            "bytes",
            (
                Query(
                    "max by (pod) (process_resident_memory_bytes and on (namespace, pod) trainyard_clock_offset_seconds)",
                    "{{pod}}",
                ),
            ),
        ),
        Panel(
            "Cached pods and jobs",
            "Pods and jobs in the operator's caches.",
            COUNT,
            (Query("max(trainyard_worker_pods)", "pods"), Query("sum(trainyard_jobs)", "jobs")),
        ),
    ),
)
BOARD = Board(
    OPERATOR,
    "Trainyard / Operator",
    "The operator: leadership, throughput, and the API server's responses.",
    (),
    (NOW, RECONCILES, SERVER, AGENTS),
)
