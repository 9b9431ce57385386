"""Report in the status whether the agent runs the command of a job's workers, and restart without it where it cannot. Pure."""

import re
from collections.abc import Sequence

from trainyard.api.constants import AGENT
from trainyard.api.reasons import Reason
from trainyard.api.recovery import NO_PYTHON_CODE, Agent
from trainyard.api.status import ConditionType as C
from trainyard.domain.decisions import ConditionUpdate, Restart, SetFalse, SetTrue
from trainyard.domain.recovery.root_cause import Cause
from trainyard.domain.recovery.start_errors import START_REASONS
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.termination import Kind

SHELL = "/bin/sh"
"""Runs the script that looks for a Python in the image."""
SHELL_MISSING = re.compile(rf"{SHELL}[\"`]?:? (?:stat {SHELL}: )?(?:no such file|executable file not found|not found)")
"""What container runtimes say where the image has no shell. Other errors may name it too."""
WITHOUT = "recovery still works, but no hang is detected, and failures are described by exit code and log alone"


def without_agent(job: JobView, cause: Cause) -> Restart | None:
    """Return the restart without the agent, if the attempt ended because the agent cannot run in this image."""
    problem = _image_problem(job, cause)
    if not problem:
        return None
    unable = SetFalse(C.AGENT_INJECTED, Reason.NO_PYTHON, f"{problem}, so that {AGENT} cannot run: {WITHOUT}")
    return Restart(Reason.NO_PYTHON, f"{problem}: {AGENT} is disabled for this job", conditions=[unable])


def agent_conditions(job: JobView, *, brought: bool) -> Sequence[ConditionUpdate]:
    """Return the updates of AgentInjected: where an expected agent cannot run, or where the condition exists already.

    `brought`: whether the operator has an agent to inject.
    """
    reported = job.status.condition(C.AGENT_INJECTED) is not None
    if not brought or job.spec.recovery.agent is Agent.NONE:
        why = "recovery.agent is none" if brought else "the operator is set up without an agent"
        return [SetFalse(C.AGENT_INJECTED, Reason.AGENT_DISABLED, f"{why}: {WITHOUT}")] if reported else []
    if not job.command:
        why = f"the main container has no command that {AGENT} could run: {WITHOUT}; to have more, give it a command"
        return [SetFalse(C.AGENT_INJECTED, Reason.NO_COMMAND, why)]
    if job.rejects_agent:
        return []
    return (
        [SetTrue(C.AGENT_INJECTED, Reason.AGENT_INJECTED, f"{AGENT} runs the command of each worker")]
        if reported
        else []
    )


def _image_problem(job: JobView, cause: Cause) -> str:
    """Return why the agent cannot run in this image, if that ended the attempt; empty otherwise."""
    ended = cause.exit
    if ended is None or ended.init_container or not job.wants_agent:
        return ""
    if ended.code == NO_PYTHON_CODE and ended.kind is Kind.AGENT_UNABLE:
        return ended.message
    # The container runtime names the missing program in its text alone; the reason has other causes too.
    missing = ended.reason in START_REASONS and SHELL_MISSING.search(ended.message)
    return f"there is no {SHELL} in this image" if missing else ""
