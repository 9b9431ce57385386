"""`spec.recovery`: what a failure leads to, by rules. The user's come first, then those of the exit codes below."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

from trainyard.api.base import Model, rule

DAY = 24 * 3600
MOST_IN_A_WINDOW = 1000
"""So many times of failures fit into a status without swelling it."""


class Action(StrEnum):
    """What the end of a worker leads to."""

    RESTART = "Restart"
    """The group starts anew, and a failure counts towards `maxRestarts`."""
    IGNORE = "Ignore"
    """The group starts anew at no charge."""
    RESTART_ELSEWHERE = "RestartElsewhere"
    """The group starts anew at no charge, and not on the node of that worker."""
    FAIL = "Fail"
    """The job fails at once."""


Word = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ExitCode = Annotated[int, Field(ge=1, le=255)]


class Rule(Model):
    """Applies where all of what it names is so."""

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
    """Restart: the group starts anew, and a failure is counted, where the worker was taken away too. Ignore: it starts anew at no charge.
    RestartElsewhere: it starts anew at no charge, and keeps away from the worker's node for a day. Fail: the job fails at once."""
    exit_codes: list[ExitCode] | None = Field(default=None, min_length=1, max_length=255)
    """The exit code of the main container, or of the init container that failed, is one of these. With what code a worker ends that was
    taken away does not matter."""
    reasons: list[Word] | None = Field(default=None, min_length=1, max_length=20)
    """What the node, the scheduler or whoever took the pod away says in one word is one of these: OOMKilled, Evicted,
    PreemptionByScheduler, UnexpectedAdmissionError …"""
    pod_conditions: list[Word] | None = Field(default=None, min_length=1, max_length=20)
    """A condition of one of these types is True at the pod, DisruptionTarget say."""
    message: str | None = Field(default=None, min_length=1, max_length=256)
    """What was said at the end (the termination message, or the last lines of the log) contains this text, or, with * for
    any characters between, these parts of it in this order."""


class Agent(StrEnum):
    """Whether the agent is brought into workers."""

    AUTO = "auto"
    NONE = "none"


class RestartScope(StrEnum):
    """The means of recovery, the cheapest first."""

    PROCESS = "Process"
    """The processes of all workers start anew in their containers."""
    CONTAINER = "Container"
    """The container of the worker that failed starts anew in its pod; the processes of the others in place."""
    POD = "Pod"
    """The workers that failed get new pods; the processes of the others start anew in place."""
    GROUP = "Group"
    """All workers get new pods."""


class Recovery(Model):
    """What happens when workers fail."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                rule(
                    f"!has(self.windowSeconds) || self.maxRestarts <= {MOST_IN_A_WINDOW}",
                    f"maxRestarts must not be greater than {MOST_IN_A_WINDOW} where windowSeconds is set",
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
    """auto: `trainyard-agent` is brought into every worker whose main container has a command, and runs it: processesPerReplica times,
    or once where it starts the ranks itself, as torchrun does (see docs/reference/agent.md). none: the container runs as it stands."""
    min_restart_scope: RestartScope = RestartScope.PROCESS
    """The cheapest means of recovery that is tried. Processes: where a process fails, all processes of the group start anew in their
    containers; Containers: the container of the failed worker starts anew in its pod, where the cluster has restart rules (Kubernetes 1.35),
    and with it all others of that pod, where it has more than one; FailedPods: the failed worker gets a new pod, and only the processes of
    the others start anew in place; AllPods: all workers get new pods. What fails twice without getting further, or is not possible (without
    the agent, say), makes room for the next;
    the second failure in a row at the same step, and a node that is avoided from then on, ask for a new pod at once. Further is a step
    beyond all before; where steps are not known, an hour."""
    warm_start: bool = True
    """Whether the agent keeps a process ready in which a Python program's imports are done, from which it starts the ranks anew."""
    max_restarts: int = Field(default=10, ge=0, le=10_000)
    """How many failures restart the job before the next one fails it. Disruptions (deleted, evicted or preempted pods,
    lost nodes) and resizes are not counted here."""
    max_disruptions: int | None = Field(default=None, ge=0, le=10_000)
    """How many disruptions restart the job before the next one fails it. Not set: any number."""
    no_progress_limit: int = Field(default=3, ge=2, le=10_000)
    """So many failures in a row at the same step fail the job, whatever maxRestarts allows: it would go round for ever. Of programs that
    tell their progress (`trainyard_agent.progress`); a failure at a further step than all before forgives those. From the second on the worker gets a new
    pod, so that with 3 or more it is not the container or its node."""
    window_seconds: int | None = Field(default=None, ge=60, le=366 * DAY)
    """Only failures of the last so many seconds count towards maxRestarts. Not set: all of them."""
    avoid_nodes: bool = True
    """Whether later attempts keep away from nodes that hurt this job: never on one that a worker has left with exit code 94 or by a
    rule's RestartElsewhere, and elsewhere if possible once a node was the cause twice (lost, refusing workers, or crashes that
    hardware makes). Workers on one leave it when it is the cause. Each for a day; status.suspectNodes lists them."""
    hang_timeout_seconds: int | None = Field(default=None, ge=0, le=7 * DAY)
    """Seconds without a step after which `trainyard-agent` ends a worker that hangs, where the program tells its progress
    (`trainyard_agent.progress`). Not set: five times what its steps usually take, and 30 at least. 0: it is not ended."""
    force_delete_after_seconds: int = Field(default=300, ge=0, le=7 * DAY)
    """Seconds after the end of its grace period when a pod that the job uses no more is deleted by force, if nothing is heard of its
    node: it would be Terminating until the node is back. The pod's processes may still run there. 0: never."""
    rules: list[Rule] = Field(default=[], max_length=20, json_schema_extra={"x-kubernetes-list-type": "atomic"})
    """What the end of a worker leads to. The first rule that applies decides; where none does, the exit code does (see
    docs/reference/exit-codes.md): Fail for 2, 93, 95, 126 and 127, Ignore for 90 and 92, RestartElsewhere for 94, Restart for all
    others."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an exit code means by convention, and what follows from it."""

    codes: tuple[int, ...]
    action: Action
    text: str


MEANINGS = (
    Meaning((2,), Action.FAIL, "The command was used wrongly: an unknown option, or a script that is not there."),
    Meaning((90,), Action.IGNORE, "Ended in good order because it was asked to, with a checkpoint written."),
    Meaning((91,), Action.RESTART, "It hung: no progress for longer than steps take. The agent ended it."),
    Meaning(
        (92,), Action.IGNORE, "Ended only because another worker was lost. Where that one is known, it is the cause."
    ),
    Meaning((93,), Action.FAIL, "The program asks not to be started again."),
    Meaning((94,), Action.RESTART_ELSEWHERE, "A check of the node's health failed: GPU, network or disk."),
    Meaning((95,), Action.FAIL, "No checkpoint can be read, and none of the older ones either."),
    Meaning(
        (96,),
        Action.RESTART,
        "`trainyard-agent` found no Python 3.9 or newer in the image, or could not run there. The first time, the group starts anew without it, at no charge.",
    ),
    Meaning((126, 127), Action.FAIL, "The command cannot be executed, or is not in the image."),
)
"""All other codes mean an error that may not come again: Restart."""
SAVED_CODE = 90
HANG_CODE = 91
PEER_LOST_CODE = 92
NO_PYTHON_CODE = 96
RESTART_CODE = 88
SIGBUS_CODE = 128 + 7
TOLD = (
    Meaning((75,), Action.RESTART, "The program asks to be tried again."),
    Meaning(
        (RESTART_CODE,),
        Action.RESTART,
        "An error of the program. `trainyard-agent` itself ends so where its container is to start anew in the pod, which is no failure.",
    ),
    Meaning((134,), Action.RESTART, "SIGABRT: an assertion of CUDA's, or NCCL's watchdog."),
    Meaning((SIGBUS_CODE,), Action.RESTART, "SIGBUS: memory that was mapped is not there; as a rule /dev/shm is full."),
    Meaning((137,), Action.RESTART, "SIGKILL: by the kernel for want of memory, or by somebody."),
    Meaning((139,), Action.RESTART, "SIGSEGV: native code crashed. Nodes where it happens twice are avoided."),
    Meaning(
        (143,),
        Action.RESTART,
        "SIGTERM, which nobody has asked for: the end of a pod that is taken away costs nothing.",
    ),
)
"""What is said of others: they mean an error that may not come again, too."""
