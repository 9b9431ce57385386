"""The dashboard of one job: progress, speed, goodput, stragglers, and the causes of its restarts."""

from dev.codegen.dashboards.fleet import PHASES
from dev.codegen.dashboards.panels import (
    BAD,
    CORES,
    COUNT,
    GOOD,
    JOB,
    POOR,
    Board,
    Kind,
    Mark,
    Panel,
    Query,
    Row,
    Variable,
    number,
)
from trainyard.api.constants import ROLE_WORKER
from trainyard.api.roles import RoleName

THIS = 'namespace="$namespace", name="$name"'
RANKS = 'namespace="$namespace", trainyard_dev_job_name="$name"'
"""Metrics that workers with the training library export. The chart's PodMonitor copies the label from the pods."""
PODS = f'namespace="$namespace", pod=~"$name-({"|".join((ROLE_WORKER, *RoleName))})-.+"'


def _metric(metric: str) -> str:
    return f"max by (namespace, name) (trainyard_job_{metric}{{{THIS}}})"


def _by_role(metric: str) -> str:
    return f"max by (role) (trainyard_job_{metric}{{{THIS}}})"


def _by_rank(metric: str) -> str:
    return f"max by (rank) (trainyard_training_{metric}{{{RANKS}}})"


def _gpu(metric: str, function: str = "max") -> str:
    return f"{function} by (pod, gpu) (DCGM_FI_{metric}{{{PODS}}})"


CHECKPOINT = _metric("checkpoint_timestamp_seconds")
ACTIVE = _metric("active_timestamp_seconds")
NOW = Row(
    "Overview",
    (
        number("Step", "Last step that all ranks have completed.", COUNT, _metric("step")),
        number(
            "Progress",
            "Share of the total steps, if the program reports their number.",
            "percentunit",
            f"{_metric('step')} / {_metric('total_steps')}",
            top=1.0,
        ),
        number(
            "Time remaining",
            "Remaining steps at the usual step time. Recoveries, checkpoints and evaluation are not included.",
            "s",
            f"clamp_min({_metric('total_steps')} - {_metric('step')}, 0) * {_metric('step_seconds')}",
        ),
        number(
            "Goodput",
            "Share of the job's active time that produced steps that were kept.",
            "percentunit",
            _metric("goodput_ratio"),
            base=BAD,
            limits={0.7: POOR, 0.9: GOOD},
            top=1.0,
        ),
        number(
            "Restarts",
            "Restarts of any cause.",
            COUNT,
            f"sum by (namespace, name) (trainyard_job_restarts_total{{{THIS}}})",
            limits={1: POOR},
        ),
        number("Workers", "Workers in the group of the current attempt.", COUNT, _metric("workers")),
    ),
)
PROGRESS = Row(
    "Progress",
    (
        Panel(
            "Phase",
            "Phase of the job over time. Vertical lines in all panels mark restarts and their causes.",
            "none",
            (Query(f"max by (phase) (trainyard_job_phase{{{THIS}}})", "{{phase}}"),),
            Kind.STATES,
            width=24,
            height=5,
            states=PHASES,
        ),
        Panel(
            "Step",
            "Last step that all ranks have completed. A drop shows steps that a recovery repeats.",
            COUNT,
            (Query(_metric("step"), "step"),),
        ),
        Panel(
            "Loss",
            "Mean of the losses that the ranks last reported.",
            "none",
            (Query(_metric("loss"), "loss"),),
            bottom=None,
        ),
        Panel(
            "Gradient norm",
            "Mean of what the ranks last reported. A peak before a NaN loss suggests a too high learning rate or broken data.",
            "none",
            (Query(_metric("gradient_norm"), "norm"),),
        ),
    ),
)
SPEED = Row(
    "Speed",
    (
        Panel(
            "Throughput: samples",
            "Of all ranks together, over their last 64 steps.",
            "suffix: samples/s",
            (Query(_metric("samples_per_second"), "samples/s"),),
        ),
        Panel(
            "Throughput: tokens",
            "Of all ranks together, over their last 64 steps, if the program reports tokens.",
            "suffix: tokens/s",
            (Query(_metric("tokens_per_second"), "tokens/s"),),
        ),
        Panel(
            "Step time",
            "Median over recent steps and ranks, and the compute time of the slowest and the fastest rank. All ranks wait for their difference.",
            "s",
            (
                Query(_metric("step_seconds"), "step"),
                Query(_metric("slowest_rank_seconds"), "slowest rank"),
                Query(_metric("fastest_rank_seconds"), "fastest rank"),
            ),
        ),
        Panel(
            "Model FLOPs utilisation",
            "Share of the device's peak that the model's own operations use, if the program reports its operations.",
            "percentunit",
            (Query(_metric("mfu_ratio"), "MFU"),),
            base=POOR,
            limits={0.3: GOOD},
            top=1.0,
        ),
        Panel(
            "Share of time by phase",
            "Shares of the time of all ranks, by the phases that the program reports. A large share of `data` means a slow loader.",
            "percentunit",
            (
                Query(
                    f"sum by (phase) (rate(trainyard_training_phase_seconds_total{{{RANKS}}}[$__rate_interval])) / on () group_left () "
                    f"sum(rate(trainyard_training_phase_seconds_total{{{RANKS}}}[$__rate_interval]))",
                    "{{phase}}",
                ),
            ),
            stacked=True,
            top=1.0,
        ),
        Panel(
            "Share of time waiting",
            "Shares of the time with a collective in flight, waiting for data, and blocked by a checkpoint.",
            "percentunit",
            (
                Query(_metric("communication_ratio"), "communication"),
                Query(_metric("data_ratio"), "data"),
                Query(_metric("checkpoint_ratio"), "checkpoint"),
            ),
            limits={0.3: POOR},
            top=1.0,
        ),
    ),
)
GOODPUT = Row(
    "Goodput",
    (
        Panel(
            "Cumulative time by category",
            "Total time by category: kept steps, startup, recovery, repeated steps, and other, for example checkpoints and evaluation.",
            "s",
            (
                Query(f"max by (namespace, name) (trainyard_job_productive_seconds_total{{{THIS}}})", "kept steps"),
                Query(f"max by (reason) (trainyard_job_lost_seconds_total{{{THIS}}})", "{{reason}}"),
            ),
            stacked=True,
            width=12,
        ),
        Panel(
            "Goodput",
            "Share of its whole active time, up to the last reported step.",
            "percentunit",
            (Query(_metric("goodput_ratio"), "goodput"),),
            base=BAD,
            limits={0.7: POOR, 0.9: GOOD},
            top=1.0,
            width=12,
        ),
    ),
)
RANK = Row(
    "Ranks",
    (
        Panel(
            "Compute time by rank, relative to the median",
            "Compute time of each rank divided by the median of all. From 1.5 on a rank is a straggler; `status.stragglers` has its pod and node.",
            "suffix: x",
            (
                Query(
                    f"{_by_rank('compute_seconds')} / on () group_left () quantile(0.5, {_by_rank('compute_seconds')})",
                    "rank {{rank}}",
                ),
            ),
            Kind.BY_RANK,
            width=24,
            height=9,
            bottom=0.5,
            top=2.0,
        ),
        Panel(
            "Straggling ranks",
            "Ranks that have been slower than the others for a minute.",
            COUNT,
            (
                Query(
                    f"max by (namespace, name) (trainyard_job_straggling_ranks{{{THIS}}}) or {_metric('workers')} * 0",
                    "straggling ranks",
                ),
            ),
            limits={1: POOR},
        ),
        Panel(
            "Time since the last step",
            "Time since each rank last reported a step. A hung rank rises alone, or first.",
            "s",
            (Query(f"time() - {_by_rank('last_step_timestamp_seconds')}", "rank {{rank}}"),),
            limits={60: POOR},
        ),
        Panel(
            "Host memory by rank",
            "Resident set size of the process itself, without the workers of its data loader.",
            "bytes",
            (Query(_by_rank("host_memory_bytes"), "rank {{rank}}"),),
        ),
    ),
)
ATTEMPTS = Row(
    "Attempts",
    (
        Panel(
            "Attempt",
            "Number of the current attempt. `kubectl describe tj` has the cause of the last failure, with rank, node and traceback.",
            COUNT,
            (Query(_metric("attempt"), "attempt"),),
        ),
        Panel(
            "Restarts by cause",
            "Total restarts. Failures count against `maxRestarts`; disruptions and resizes do not. Members of some roles restart alone, too.",
            COUNT,
            (
                Query(f"max by (cause) (trainyard_job_restarts_total{{{THIS}}})", "{{cause}}"),
                Query(_by_role("role_container_restarts_total"), "{{role}} alone", rare=True),
            ),
            limits={1: POOR},
        ),
        Panel(
            "Age of the last checkpoint",
            "Time that a failure now would lose: since the checkpoint, or since the job was resumed. The training library reports checkpoints.",
            "s",
            (Query(f"time() - ({CHECKPOINT} > {ACTIVE} or {ACTIVE} and {CHECKPOINT})", "age"),),
            limits={3600: POOR, 21600: BAD},
        ),
        Panel(
            "Checkpoint duration",
            "Time until a checkpoint is stored completely. The training continues meanwhile.",
            "s",
            (Query(_metric("checkpoint_seconds"), "stored in"),),
            limits={600: POOR},
        ),
        Panel(
            "Workers",
            "Size of the group. An elastic group grows and shrinks. Of a job with other roles, also the ready members of each role.",
            COUNT,
            (
                Query(_metric("workers"), "workers"),
                Query(_by_role("role_ready_replicas"), "{{role}} ready", rare=True),
            ),
        ),
    ),
)
GPU = Row(
    "GPU (NVIDIA dcgm-exporter)",
    (
        Panel("GPU utilization", "Share of the time in which a kernel ran, whatever its efficiency: see the next panel.", "percent", (Query(_gpu("DEV_GPU_UTIL"), "{{pod}} {{gpu}}"),), top=100.0, needs="GPU"),
        Panel("Tensor core utilization", "Share of the cycles in which tensor cores were active.", "percentunit", (Query(_gpu("PROF_PIPE_TENSOR_ACTIVE"), "{{pod}} {{gpu}}"),), top=1.0, needs="GPU"),
        Panel("Memory used", "Memory of each GPU, including what torch has reserved.", "decmbytes", (Query(_gpu("DEV_FB_USED"), "{{pod}} {{gpu}}"),), needs="GPU"),
        Panel("Temperature", "GPUs throttle at about 85 °C.", "celsius", (Query(_gpu("DEV_GPU_TEMP"), "{{pod}} {{gpu}}"),), limits={85: BAD}, needs="GPU"),
        Panel("Power", "Power of each GPU. One that draws less than others is slow, or waits.", "watt", (Query(_gpu("DEV_POWER_USAGE"), "{{pod}} {{gpu}}"),), needs="GPU"),
        Panel("Last XID error", "Last error of each GPU, by NVIDIA's number; 0: none.", "none", (Query(_gpu("DEV_XID_ERRORS"), "{{pod}} {{gpu}}"),), limits={1: BAD}, needs="GPU"),
    ),
)  # fmt: skip
NODE = Row(
    "Network and memory (kubelet, cAdvisor)",
    (
        Panel(
            "Network throughput",
            "Bytes per second that pods receive (above) and send (below). RDMA is not included.",
            "binBps",
            (
                Query(
                    f"sum by (pod) (rate(container_network_receive_bytes_total{{{PODS}}}[$__rate_interval]))",
                    "{{pod}} received",
                ),
                Query(
                    f"-sum by (pod) (rate(container_network_transmit_bytes_total{{{PODS}}}[$__rate_interval]))",
                    "{{pod}} sent",
                ),
            ),
            bottom=None,
        ),
        Panel(
            "CPU usage",
            "Cores that each worker uses.",
            CORES,
            (
                Query(
                    f"sum by (pod) (rate(container_cpu_usage_seconds_total{{{PODS}, container!=''}}[$__rate_interval]))",
                    "{{pod}}",
                ),
            ),
        ),
        Panel(
            "Memory usage",
            "Working set of each worker, which the memory limit applies to.",
            "bytes",
            (Query(f"sum by (pod) (container_memory_working_set_bytes{{{PODS}, container!=''}})", "{{pod}}"),),
        ),
    ),
)
BOARD = Board(
    JOB,
    "Trainyard / Job",
    "One TrainingJob: progress, speed, goodput, stragglers, and the causes of its restarts.",
    (
        Variable("namespace", "Namespace", "label_values(trainyard_job_phase, namespace)", several=False),
        Variable("name", "Job", 'label_values(trainyard_job_phase{namespace="$namespace"}, name)', several=False),
    ),
    (NOW, PROGRESS, SPEED, GOODPUT, RANK, ATTEMPTS, GPU, NODE),
    (
        Mark(
            "Restarts", f"sum by (cause) (increase(trainyard_job_restarts_total{{{THIS}}}[1m])) > 0", "{{cause}}", BAD
        ),
        Mark(
            "Attempts",
            f"sum by (namespace) (changes(trainyard_job_attempt{{{THIS}}}[1m])) > 0",
            "next attempt",
            "purple",
        ),
    ),
)
