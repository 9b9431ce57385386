"""Decide whether the agent runs the command of a job's workers, and report in the status where it cannot. Pure."""

from collections.abc import Sequence

from trainyard.api.constants import AGENT
from trainyard.api.reasons import Reason
from trainyard.api.recovery import NO_PYTHON_CODE, Agent
from trainyard.api.status import ConditionType as C, TrainingJobStatus
from trainyard.domain.conditions import ConditionUpdate, SetFalse, SetTrue
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.termination import Kind

SHELL = "/bin/sh"
"""Runs the script that looks for a Python in the image."""
NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
"""The reasons of a node for a container whose first program is not in its image."""
WITHOUT = "recovery still works, but failures are described by exit code and log alone"


def wants_agent(job: JobView) -> bool:
    """Return whether the operator injects the agent into the workers, where it can."""
    return job.spec.recovery.agent is Agent.AUTO and _has_command(job) and not _is_unsupported(job.status)


def has_agent(job: JobView, *, brought: bool) -> bool:
    """Return whether a new worker has an agent: one that the operator injects, or its image's own."""
    command = job.spec.template["spec"]["containers"][0].get("command") or [""]
    return (brought and wants_agent(job)) or str(command[0]).rpartition("/")[2] == AGENT


def image_problem(job: JobView, cause: Cause) -> str:
    """Return why the agent cannot run in this image, if that ended the attempt; empty otherwise."""
    ended = cause.pod.exit if cause.pod else None
    if ended is None or ended.init_container or not wants_agent(job):
        return ""
    if ended.code == NO_PYTHON_CODE and ended.kind is Kind.AGENT_UNABLE:
        return ended.message
    # The container runtime names the missing program in its text alone; the reason has other causes too.
    return f"there is no {SHELL} in this image" if ended.reason in NOT_STARTED and SHELL in ended.message else ""


def cannot_run(why: str) -> ConditionUpdate:
    """Return the condition of a job in whose image the agent cannot run."""
    return SetFalse(C.AGENT_INJECTED, Reason.NO_PYTHON, f"{why}, so that {AGENT} cannot run: {WITHOUT}")


def agent_conditions(job: JobView, status: TrainingJobStatus, *, brought: bool) -> Sequence[ConditionUpdate]:
    """Return the updates of AgentInjected: where an expected agent cannot run, or where the condition exists already.

    `brought`: whether the operator has an agent to inject.
    """
    reported = status.condition(C.AGENT_INJECTED) is not None
    if not brought or job.spec.recovery.agent is Agent.NONE:
        why = "recovery.agent is none" if brought else "the operator is set up without an agent"
        return [SetFalse(C.AGENT_INJECTED, Reason.AGENT_DISABLED, f"{why}: {WITHOUT}")] if reported else []
    if not _has_command(job):
        why = f"the main container has no command that {AGENT} could run: {WITHOUT}; to have more, give it a command"
        return [SetFalse(C.AGENT_INJECTED, Reason.NO_COMMAND, why)]
    if _is_unsupported(status):
        return []
    return (
        [SetTrue(C.AGENT_INJECTED, Reason.AGENT_INJECTED, f"{AGENT} runs the command of each worker")]
        if reported
        else []
    )


def _has_command(job: JobView) -> bool:
    return bool(job.spec.template["spec"]["containers"][0].get("command"))


def _is_unsupported(status: TrainingJobStatus) -> bool:
    stored = status.condition(C.AGENT_INJECTED)
    return stored is not None and stored.status == "False" and stored.reason == Reason.NO_PYTHON
