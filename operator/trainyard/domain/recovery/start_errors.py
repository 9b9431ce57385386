"""Recognize a container that can never start: its command, arguments or working directory are wrong. Pure.

Container runtimes report the cause as text alone, and with one exit code for all causes. Errors that are not in the table, such as
those of a device's driver, may belong to one node: they are retried.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.api.reasons import Reason
from trainyard.domain.decisions import Fail
from trainyard.domain.state.snapshot import JobView
from trainyard.domain.state.termination import Exit
from trainyard.domain.state.worker_views import PodView

START_REASONS = frozenset({"StartError", "ContainerCannotRun"})
"""The reasons of a node for a container whose first program could not be started."""
CREATE_REASONS = frozenset({"CreateContainerError", "RunContainerError"})
"""The reasons for which a container waits that its node fails to create."""
LAST_WORDS = re.compile(r"(?:exec [^:\n]{1,255}|[\w./]{1,255}:\d+: exec user process caused(?: \"?)?): [^\n]+")
"""What runc writes into the log where the kernel refuses the program after the container was started: that is the whole log."""


@dataclass(frozen=True, slots=True)
class StartError:
    """An error of a container's start that no restart can fix."""

    words: re.Pattern[str]
    """What the runtime says."""
    fix: str


PROGRAM = r'exec: "(?:[^"\\]|\\.){0,1024}": '
"""The program as runc quotes it, with escaped quotes: a whole command line in one string, for example."""
START_ERRORS = (
    StartError(
        re.compile(r"chdir to cwd|set working directory|chdir to `|container init: mkdir [^:]{1,255}: "),
        "correct workingDir, or let the container's user enter that directory",
    ),
    StartError(
        re.compile(r"argument list too long", re.IGNORECASE),
        "pass long arguments and variables in a file, for example from a ConfigMap",
    ),
    StartError(
        re.compile(r"exec format error", re.IGNORECASE),
        "use an image for the node's architecture; a script needs a first line such as #!/bin/sh",
    ),
    StartError(
        re.compile(
            PROGRAM
            + r"(?:executable file not found|stat [^:]{1,1024}: (?:no such file|not a directory|file name too long)|no such file)"
            r"|executable file `[^`]{0,255}` not found|exec [^:\n]{1,255}: no such file or directory"
        ),
        "put the program into the image, or correct command and args: each word is an item of its own",
    ),
    StartError(
        re.compile(
            PROGRAM + r"(?:permission denied|is a directory)|exec [^:\n]{1,255}: permission denied"
            r"|open executable: Permission denied"
        ),
        "make the file executable (chmod +x), or name its interpreter in command",
    ),
    StartError(
        re.compile(r"unable to find (?:user|group) [^:\n]{1,255}: no matching entries in (?:passwd|group) file"),
        "use a number in runAsUser, or add the user to the image",
    ),
)


def start_fix(end: Exit) -> str:
    """Return how to fix a container that can never start; empty where a restart may help, or where it has run."""
    refused = end.code != 0 and LAST_WORDS.fullmatch(end.message.strip()) is not None
    if end.kind is not None or not (refused or end.reason in START_REASONS):
        return ""
    return _fix(end.message)


def never_starts(job: JobView, pods: Sequence[PodView]) -> Fail | None:
    """Return the failure of a job with a container that its node tries to create again and again, in vain: CRI-O reports it so."""
    reasons = {reason for rule in job.spec.recovery.rules for reason in rule.reasons or ()}
    for pod in pods:
        issue = pod.issue
        if (
            issue is None
            or pod.running
            or issue.reason not in CREATE_REASONS - reasons
            or not (fix := _fix(issue.message))
        ):
            continue
        message = f"pod {pod.name} on {pod.node}: {issue.reason}: {issue.message}; no restart can fix this: {fix}"
        return Fail(Reason.NON_RETRYABLE, message)
    return None


def _fix(message: str) -> str:
    return next((error.fix for error in START_ERRORS if error.words.search(message)), "")
