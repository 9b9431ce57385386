"""`spec.recovery`: how the operator reacts to failures. The rules of the user come first, then the exit codes below."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from trainyard.api.base import Model, rule

DAY = 24 * 3600
MAX_RESTARTS_IN_WINDOW = 1000
"""The most failure times that a status holds: more would make it too large."""


class Action(StrEnum):
    """The reaction to the failure of a worker."""

    RESTART = "Restart"
    """The group restarts, and a failure counts towards `maxRestarts`."""
    IGNORE = "Ignore"
    """The group restarts. This is not counted."""
    RESTART_ELSEWHERE = "RestartElsewhere"
    """The group restarts without the node of that worker. This is not counted."""
    FAIL = "Fail"
    """The job fails at once."""


Word = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ExitCode = Annotated[int, Field(ge=1, le=255)]


class Rule(Model):
    """A rule applies if all of its conditions are true."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    "has(self.exitCodes) || has(self.reasons) || has(self.podConditions) || has(self.message)",
                    "a rule must say when it applies: give at least one of exitCodes, reasons, podConditions, message",
                ),
            ],
        },
    )

    action: Action
    """Restart: the group restarts and a failure is counted, also after a disruption. Ignore: the group restarts, and no failure is counted.
    RestartElsewhere: the group restarts, no failure is counted, and the job avoids the worker's node for a day. Fail: the job fails at once."""
    exit_codes: list[ExitCode] | None = Field(default=None, min_length=1, max_length=255)
    """The exit code of the main container, or of the failed init container, is one of these. The exit code of a disrupted worker is
    ignored."""
    reasons: list[Word] | None = Field(default=None, min_length=1, max_length=20)
    """The reason that the node, the scheduler or the source of the disruption reports is one of these: OOMKilled, Evicted,
    PreemptionByScheduler, UnexpectedAdmissionError …"""
    pod_conditions: list[Word] | None = Field(default=None, min_length=1, max_length=20)
    """The pod has a True condition of one of these types, for example DisruptionTarget."""
    message: str | None = Field(default=None, min_length=1, max_length=256)
    """The termination message, or the last lines of the log, contain this text. * stands for any characters."""


class Agent(StrEnum):
    """Whether the agent is injected into workers."""

    AUTO = "auto"
    NONE = "none"


class HiddenFailures(StrEnum):
    """The reaction to a rank that fails under a command that exits with code 0."""

    WARN = "Warn"
    FAIL = "Fail"


class RestartScope(StrEnum):
    """What is restarted after a failure, the smallest first."""

    PROCESS = "Process"
    """The processes of all workers restart in their containers."""
    CONTAINER = "Container"
    """The container of the failed worker restarts in its pod. The processes of the other workers restart in place."""
    POD = "Pod"
    """The failed workers get new pods. The processes of the other workers restart in place."""
    GROUP = "Group"
    """All workers get new pods."""


class Recovery(Model):
    """How the operator reacts to worker failures."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    f"!has(self.windowSeconds) || self.maxRestarts <= {MAX_RESTARTS_IN_WINDOW}",
                    f"maxRestarts must not be greater than {MAX_RESTARTS_IN_WINDOW} where windowSeconds is set",
                    fieldPath=".maxRestarts",
                ),
                rule(
                    "self.avoidNodes || !has(self.rules) || !self.rules.exists(r, r.action == 'RestartElsewhere')",
                    "avoidNodes must not be false where a rule says RestartElsewhere",
                    fieldPath=".avoidNodes",
                ),
            ],
        },
    )

    agent: Agent = Agent.AUTO
    """auto: `trainyard-agent` is injected into every worker whose main container has a command. It runs the command processesPerReplica
    times, or once if the command starts the ranks itself, as torchrun does. See docs/reference/agent.md. none: the container runs as is."""
    min_restart_scope: RestartScope = RestartScope.PROCESS
    """The smallest restart scope that is tried. Process: the processes of the group restart in their containers. Container: the container
    of the failed worker restarts in its pod, with the pod's other containers; this needs container restart rules (Kubernetes 1.35). Pod:
    the failed worker gets a new pod, and the processes of the others restart in place. Group: all workers get new pods. Recovery
    escalates to the next scope if a scope is not possible, for example without the agent. It also escalates after two attempts without
    progress. The second consecutive failure at the same step, and a newly avoided node, require a new pod at once. Progress is a later
    step than all before, or an hour if steps are not known."""
    hidden_failures: HiddenFailures = HiddenFailures.WARN
    """What a rank means that fails under a command which exits with code 0: `torchrun train.py | tee log`, `python train.py; echo done`.
    Warn: the worker succeeds, and the condition FailureHidden names the rank, its exit code and the fix. Fail: the worker fails with the
    rank's exit code. It needs the agent. A rank whose program succeeds when it is started again has not failed."""
    warm_start: bool = True
    """Whether the agent keeps a process with the imports of a Python program loaded, and restarts the ranks from it."""
    max_restarts: int = Field(default=10, ge=0, le=10_000)
    """How many failures may restart the job; the next one fails it. Disruptions (deleted, evicted or preempted pods,
    lost nodes) and resizes do not count."""
    max_disruptions: int | None = Field(default=None, ge=0, le=10_000)
    """How many disruptions may restart the job; the next one fails it. Not set: unlimited."""
    no_progress_limit: int = Field(default=3, ge=2, le=10_000)
    """This number of consecutive failures at the same step fails the job, whatever maxRestarts allows. It needs programs that report
    progress (`trainyard_agent.progress`). After a failure at a later step than all before, earlier failures no longer count. From the second
    failure on the worker gets a new pod, which rules out its container as the cause."""
    window_seconds: int | None = Field(default=None, ge=60, le=366 * DAY)
    """Only failures within this number of seconds count towards maxRestarts. Not set: all failures count."""
    avoid_nodes: bool = True
    """Whether later attempts avoid suspect nodes, each for a day. A node is excluded after exit code 94 or a rule with RestartElsewhere.
    A node that caused two failures (lost, rejected pods, hardware crashes) is avoided if other nodes fit. Workers leave a node that
    caused the failure. status.suspectNodes lists the nodes."""
    hang_timeout_seconds: int | None = Field(default=None, ge=0, le=7 * DAY)
    """Seconds without a step after which `trainyard-agent` stops a hung worker, if the program reports progress
    (`trainyard_agent.progress`). Not set: five times the usual step time, at least 30 seconds. For other programs: seconds for which
    no rank does anything before HangSuspected is True; nothing is stopped. Not set: 600. 0: never, in both cases."""
    restart_grace_seconds: int | None = Field(default=None, ge=0, le=DAY)
    """Seconds that the ranks of workers which keep their pods get to save their work after SIGTERM when the group restarts. Ranks without
    a handler for SIGTERM, and ranks that are blocked, for example in a collective with a lost peer, get two seconds. Not set:
    terminationGracePeriodSeconds of the template."""
    force_delete_after_seconds: int = Field(default=300, ge=0, le=7 * DAY)
    """Seconds after the grace period after which an unused pod on an unreachable node is deleted by force. Without it, the pod stays
    Terminating until the node returns. Its processes may still run there. 0: never."""
    rules: list[Rule] = Field(default=[], max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    """The reactions to failures. The first rule that applies decides. Otherwise the exit code decides: Fail for 2, 93, 95, 98, 126, 127; Ignore
    for 90, 92; RestartElsewhere for 94; Restart for all others. See docs/reference/exit-codes.md."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """The conventional meaning of exit codes, and the action for them."""

    codes: tuple[int, ...]
    action: Action
    text: str
    remedy: str = ""
    """What to do where the action is Fail, as a sentence without its full stop."""


MEANINGS = (
    Meaning(
        (2,),
        Action.FAIL,
        "The command line is wrong: an unknown option, or a missing script.",
        "Fix the command or the image",
    ),
    Meaning((90,), Action.IGNORE, "Exited on request, with a checkpoint saved."),
    Meaning(
        (91,), Action.RESTART, "The worker hung: it made no progress for longer than steps take. The agent stopped it."
    ),
    Meaning((92,), Action.IGNORE, "Exited because another worker was lost. If that worker is known, it is the cause."),
    Meaning(
        (93,),
        Action.FAIL,
        "The program requests no restart. From the training library: the container requested accelerators, and its torch is built without GPUs.",
    ),
    Meaning(
        (94,),
        Action.RESTART_ELSEWHERE,
        "The node is unfit: a check of its health failed, it is far slower than the group, or torch sees fewer GPUs than the container requested.",
    ),
    Meaning((95,), Action.FAIL, "No checkpoint can be read, not even an older one."),
    Meaning(
        (96,),
        Action.RESTART,
        "`trainyard-agent` found no Python 3.9 or newer in the image, or could not run there. The first time, the group restarts without the agent. This is not counted.",
    ),
    Meaning(
        (98,),
        Action.FAIL,
        "The training's numbers are not finite (`NonFiniteError`). The last checkpoint is good.",
        "Lower the learning rate, or use `NonFinitePolicy(roll_back=True)`",
    ),
    Meaning(
        (126, 127),
        Action.FAIL,
        "The command cannot be executed, or is not in the image.",
        "Fix the command or the image",
    ),
)
"""All other codes mean an error that a restart may fix: Restart."""
FRAMEWORK_MEANINGS: Mapping[str, Sequence[Meaning]] = MappingProxyType(
    {
        # `failure_handling_util.py` of tensorflow 2.21: 42 on Borg and TPUs, 143 on GCE and by default.
        "tensorflow": (
            Meaning(
                (42, 143), Action.IGNORE, "`PreemptionCheckpointHandler` has saved, and exited to be started again."
            ),
        ),
    }
)
"""By framework, what its library means by a code. It precedes `MEANINGS`."""
SAVED_CODE = 90
HANG_CODE = 91
PEER_LOST_CODE = 92
NO_PYTHON_CODE = 96
RESTART_CODE = 88
SIGBUS_CODE = 128 + 7
DESCRIBED = (
    Meaning((75,), Action.RESTART, "The program requests a restart."),
    Meaning(
        (RESTART_CODE,),
        Action.RESTART,
        "An error of the program. `trainyard-agent` also uses it to restart its container in the pod, which is no failure.",
    ),
    Meaning((97,), Action.RESTART, "The last checkpoint could not be stored (`CheckpointSaveError`)."),
    Meaning((99,), Action.RESTART, "The training's numbers are not finite: it resumes from the last good checkpoint."),
    Meaning((134,), Action.RESTART, "SIGABRT: an assertion of CUDA, or the watchdog of NCCL."),
    Meaning((SIGBUS_CODE,), Action.RESTART, "SIGBUS: mapped memory is not available. Usually /dev/shm is full."),
    Meaning((137,), Action.RESTART, "SIGKILL: from the kernel because it ran out of memory, or from a user."),
    Meaning((139,), Action.RESTART, "SIGSEGV: native code crashed. Nodes where it happens twice are avoided."),
    Meaning(
        (143,),
        Action.RESTART,
        "SIGTERM without a request. The exit of a disrupted pod is not counted.",
    ),
)
"""Descriptions of other codes, whose action is Restart too."""
