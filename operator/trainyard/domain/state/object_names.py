"""The names that follow from a job's."""

import re

from trainyard.api.constants import LABEL_JOB_UID, ROLE_WORKER

WORKER_POD = re.compile(rf".+-{ROLE_WORKER}-(\d{{1,5}})-(\d{{1,15}})", re.ASCII)
"""No longer numbers: whoever may create pods could name one so that its attempt fits into no status."""


def worker_pod(job: str, index: int, attempt: int) -> str:
    """The pod's name: unique for all time, so that a new pod never waits for the name of a dead one."""
    return f"{job}-{ROLE_WORKER}-{index}-{attempt}"


def parse_worker_pod(name: str) -> tuple[int, int]:
    """Index and attempt in a pod's name. Raises ValueError where it is not a worker's."""
    parts = WORKER_POD.fullmatch(name)
    if parts is None:
        raise ValueError(f"{name} is not the name of a worker's pod")
    return int(parts[1]), int(parts[2])


def worker_host(job: str, index: int) -> str:
    """The host name, which stays the same from attempt to attempt."""
    return f"{job}-{ROLE_WORKER}-{index}"


def selector(job_uid: str) -> str:
    """The label selector of all pods of a job. By UID: a namesake that was deleted has other pods."""
    return f"{LABEL_JOB_UID}={job_uid}"
