"""Derive the names of a job's objects. Pure."""

import re

from trainyard.api.constants import LABEL_JOB_UID, ROLE_WORKER

WORKER_POD = re.compile(rf".+-{ROLE_WORKER}-(\d{{1,5}})-(\d{{1,15}})", re.ASCII)
"""Longer numbers are rejected: anyone who may create pods could name one whose attempt does not fit into the status."""


def worker_pod(job: str, index: int, attempt: int) -> str:
    """Return the pod's name. It is never used again, so that a new pod never waits for the name of an old one."""
    return f"{job}-{ROLE_WORKER}-{index}-{attempt}"


def parse_worker_pod(name: str) -> tuple[int, int]:
    """Return index and attempt from a pod's name. Raises ValueError where it is not a worker's."""
    parts = WORKER_POD.fullmatch(name)
    if parts is None:
        raise ValueError(f"{name} is not the name of a worker's pod")
    return int(parts[1]), int(parts[2])


def worker_host(job: str, index: int) -> str:
    """Return the host name, which is the same in every attempt."""
    return f"{job}-{ROLE_WORKER}-{index}"


def selector(job_uid: str) -> str:
    """Return the label selector of all pods of a job. By UID: a deleted job of the same name has other pods."""
    return f"{LABEL_JOB_UID}={job_uid}"
