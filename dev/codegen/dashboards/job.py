"""One job: how far it is, how fast, where its time goes, which rank is slow, and what ended its attempts."""

from dev.codegen.dashboards.fleet import PHASES
from dev.codegen.dashboards.panels import BAD, GOOD, JOB, POOR, Board, Kind, Mark, Panel, Query, Row, Variable, number

THIS = 'namespace="$namespace", name="$name"'
RANKS = 'namespace="$namespace", trainyard_dev_job_name="$name"'
"""What its workers tell themselves, with the training library: the label is that of the pods, as the chart's PodMonitor takes it over."""
PODS = 'namespace="$namespace", pod=~"$name-worker-.+"'


def _told(metric: str) -> str:
    return f"max by (namespace, name) (trainyard_job_{metric}{{{THIS}}})"


def _by_rank(metric: str) -> str:
    return f"max by (rank) (trainyard_training_{metric}{{{RANKS}}})"


def _gpu(metric: str, function: str = "max") -> str:
    return f"{function} by (pod, gpu) (DCGM_FI_{metric}{{{PODS}}})"


CHECKPOINT = _told("checkpoint_timestamp_seconds")
ACTIVE = _told("active_timestamp_seconds")
NOW = Row(
    "Now",
    (
        number("Step", "The last step that all ranks have done.", "none", _told("step")),
        number(
            "Done",
            "Of the steps that it means to do, where the program tells their number.",
            "percentunit",
            f"{_told('step')} / {_told('total_steps')}",
            top=1.0,
        ),
        number(
            "Time left",
            "The steps that are left, at what a step takes as a rule. Recoveries, checkpoints and evaluation come on top.",
            "s",
            f"clamp_min({_told('total_steps')} - {_told('step')}, 0) * {_told('step_seconds')}",
        ),
        number(
            "Goodput",
            "Share of the job's active time that went into steps that counted.",
            "percentunit",
            _told("goodput_ratio"),
            base=BAD,
            limits={0.7: POOR, 0.9: GOOD},
            top=1.0,
        ),
        number(
            "Restarts",
            "Attempts that ended before their time, for whatever cause.",
            "none",
            f"sum by (namespace, name) (trainyard_job_restarts_total{{{THIS}}})",
            limits={1: POOR},
        ),
        number("Workers", "That the group of the current attempt has.", "none", _told("workers")),
    ),
)
PROGRESS = Row(
    "Progress",
    (
        Panel(
            "Phase",
            "What the job did when. Vertical lines in all panels are attempts that ended, and why.",
            "none",
            (Query(f"max by (phase) (trainyard_job_phase{{{THIS}}})", "{{phase}}"),),
            Kind.STATES,
            width=24,
            height=5,
            states=PHASES,
        ),
        Panel(
            "Step",
            "The last step that all ranks have done. Steps that are done again after a recovery are seen as a notch.",
            "none",
            (Query(_told("step"), "step"),),
        ),
        Panel("Loss", "The mean of the losses that the ranks have told last.", "none", (Query(_told("loss"), "loss"),)),
        Panel(
            "Gradient norm",
            "The mean of what ranks have told last. A peak before a loss that is no number tells of a learning rate that is too high, or of broken data.",
            "none",
            (Query(_told("gradient_norm"), "norm"),),
        ),
    ),
)
SPEED = Row(
    "Speed",
    (
        Panel(
            "Samples a second",
            "Of all ranks together, over their last 64 steps.",
            "short",
            (Query(_told("samples_per_second"), "samples/s"),),
        ),
        Panel(
            "Tokens a second",
            "Of all ranks together, over their last 64 steps, where the program tells tokens.",
            "short",
            (Query(_told("tokens_per_second"), "tokens/s"),),
        ),
        Panel(
            "Time of a step",
            "The median over the last steps and the ranks; beside it what the slowest and the fastest rank work themselves: what is between these two is waited for by all.",
            "s",
            (
                Query(_told("step_seconds"), "step"),
                Query(_told("slowest_rank_seconds"), "slowest rank"),
                Query(_told("fastest_rank_seconds"), "fastest rank"),
            ),
        ),
        Panel(
            "Model FLOPs utilisation",
            "Share of its device's peak that a rank uses for the model's own operations, where the program tells its operations.",
            "percentunit",
            (Query(_told("mfu_ratio"), "MFU"),),
            base=POOR,
            limits={0.3: GOOD},
            top=1.0,
        ),
        Panel(
            "What ranks do",
            "Shares of the time of all ranks, by the phases that the program tells. Much of `data` means that the loader is too slow.",
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
            "Waiting",
            "Shares of the time with a collective under way, waiting for data, and kept from training by a checkpoint.",
            "percentunit",
            (
                Query(_told("communication_ratio"), "communication"),
                Query(_told("data_ratio"), "data"),
                Query(_told("checkpoint_ratio"), "checkpoint"),
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
            "Where its time went",
            "Seconds in all, by what took them: steps that counted; the start; recoveries; steps done again; the rest, checkpoints and evaluation say.",
            "s",
            (
                Query(
                    f"max by (namespace, name) (trainyard_job_productive_seconds_total{{{THIS}}})", "steps that counted"
                ),
                Query(f"max by (reason) (trainyard_job_lost_seconds_total{{{THIS}}})", "{{reason}}"),
            ),
            stacked=True,
            width=12,
        ),
        Panel(
            "Goodput",
            "Of its whole active time, up to the last step that was told.",
            "percentunit",
            (Query(_told("goodput_ratio"), "goodput"),),
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
            "Own work by rank",
            "What each rank worked itself of a step's time, without waiting for others: a row that stays hot is a slow rank. Its pod and node are in `status.stragglers`.",
            "s",
            (Query(_by_rank("own_seconds"), "rank {{rank}}"),),
            Kind.BY_RANK,
            width=24,
            height=9,
        ),
        Panel(
            "Slow ranks",
            "Ranks that have been slower than the others for a minute.",
            "none",
            (
                Query(
                    f"max by (namespace, name) (trainyard_job_straggling_ranks{{{THIS}}}) or {_told('workers')} * 0",
                    "slow ranks",
                ),
            ),
            limits={1: POOR},
        ),
        Panel(
            "Since the last step",
            "How long ago each rank told a step: one that hangs rises alone, or the first.",
            "s",
            (Query(f"time() - {_by_rank('last_step_timestamp_seconds')}", "rank {{rank}}"),),
            limits={60: POOR},
        ),
        Panel(
            "Host memory by rank",
            "The process itself (resident set); the workers of its data loader are not in it.",
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
            "Its number. `kubectl describe tj` has the cause of the last one that failed, with rank, node and traceback.",
            "none",
            (Query(_told("attempt"), "attempt"),),
        ),
        Panel(
            "Restarts by cause",
            "In all. Failures are charged to `maxRestarts`, disruptions and resizes are not.",
            "none",
            (Query(f"max by (cause) (trainyard_job_restarts_total{{{THIS}}})", "{{cause}}"),),
            limits={1: POOR},
        ),
        Panel(
            "Age of the newest checkpoint",
            "What a failure now would cost: the time since then, or since the job was resumed. The operator learns of checkpoints from the training library.",
            "s",
            (Query(f"time() - ({CHECKPOINT} > {ACTIVE} or {ACTIVE} and {CHECKPOINT})", "age"),),
            limits={3600: POOR, 21600: BAD},
        ),
        Panel(
            "Checkpoints take",
            "Until they are stored as a whole. The training goes on meanwhile.",
            "s",
            (Query(_told("checkpoint_seconds"), "stored in"),),
            limits={600: POOR},
        ),
        Panel(
            "Workers",
            "That the group has: an elastic one grows and shrinks.",
            "none",
            (Query(_told("workers"), "workers"),),
        ),
    ),
)
GPU = Row(
    "GPU: by NVIDIA's dcgm-exporter",
    (
        Panel("Busy", "Share of the time in which a kernel ran. It says nothing of how well: see the next one.", "percent", (Query(_gpu("DEV_GPU_UTIL"), "{{pod}} {{gpu}}"),), top=100.0, needs="GPU"),
        Panel("Tensor cores", "Share of the cycles in which they worked.", "percentunit", (Query(_gpu("PROF_PIPE_TENSOR_ACTIVE"), "{{pod}} {{gpu}}"),), top=1.0, needs="GPU"),
        Panel("Memory used", "Of each GPU, what torch holds in reserve included.", "decmbytes", (Query(_gpu("DEV_FB_USED"), "{{pod}} {{gpu}}"),), needs="GPU"),
        Panel("Temperature", "GPUs slow down from some 85 °C on.", "celsius", (Query(_gpu("DEV_GPU_TEMP"), "{{pod}} {{gpu}}"),), limits={85: BAD}, needs="GPU"),
        Panel("Power", "Of each GPU. One that draws less than its neighbours is slow, or waits.", "watt", (Query(_gpu("DEV_POWER_USAGE"), "{{pod}} {{gpu}}"),), needs="GPU"),
        Panel("XID errors", "The last error of each GPU, by NVIDIA's number; 0 is none.", "none", (Query(_gpu("DEV_XID_ERRORS"), "{{pod}} {{gpu}}"),), limits={1: BAD}, needs="GPU"),
    ),
)  # fmt: skip
NODE = Row(
    "Network and storage: by the kubelets (cAdvisor)",
    (
        Panel(
            "Network",
            "Bytes a second of the pods' own network, received (above) and sent (below). RDMA does not go through it.",
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
        ),
        Panel(
            "CPU",
            "Cores that each worker uses.",
            "short",
            (
                Query(
                    f"sum by (pod) (rate(container_cpu_usage_seconds_total{{{PODS}, container!=''}}[$__rate_interval]))",
                    "{{pod}}",
                ),
            ),
        ),
        Panel(
            "Memory",
            "Of each worker, what cannot be given back: by it the kernel decides when a worker is out of memory.",
            "bytes",
            (Query(f"sum by (pod) (container_memory_working_set_bytes{{{PODS}, container!=''}})", "{{pod}}"),),
        ),
    ),
)
BOARD = Board(
    JOB,
    "Trainyard / Job",
    "One TrainingJob: how far and how fast it is, where its time goes, which rank is slow, and what ended its attempts.",
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
