"""Derive the names of a job's objects. Pure."""

import re

from trainyard.api.constants import LABEL_JOB_UID, LABEL_ROLE, ROLE_WORKER
from trainyard.api.roles import MAX_ROLE_REPLICAS, RoleName, member_index, role_and_number

WORKER_POD = re.compile(
    rf".+-({'|'.join((ROLE_WORKER, *RoleName))})-(\d{{1,5}})-(\d{{1,15}})(?:-r(\d{{1,9}}))?", re.ASCII
)
"""Longer numbers are rejected: anyone who may create pods could name one whose attempt does not fit into the status."""


def worker_pod(job: str, index: int, attempt: int, recreated: int = 0) -> str:
    """Return the pod's name. It is never used again, so that a new pod never waits for the name of an old one.

    `recreated`: how often the pod was created again in this attempt.
    """
    return f"{worker_host(job, index)}-{attempt}" + (f"-r{recreated}" if recreated else "")


def parse_worker_pod(name: str) -> tuple[int, int, int]:
    """Return index and attempt from a pod's name, and how often the pod was created again in that attempt. Raises ValueError where it is not a worker's."""
    parts = WORKER_POD.fullmatch(name)
    if parts is None:
        raise ValueError(f"{name} is not the name of a worker's pod")
    role, number = parts[1], int(parts[2])
    if role != ROLE_WORKER and number >= MAX_ROLE_REPLICAS:
        raise ValueError(f"{name} is not the name of a worker's pod")
    return member_index(role, number), int(parts[3]), int(parts[4] or 0)


def worker_host(job: str, index: int) -> str:
    """Return the host name, which is the same in every attempt."""
    role, number = role_and_number(index)
    return f"{job}-{role}-{number}"


def selector(job_uid: str, *, has_roles: bool = False) -> str:
    """Return the label selector of all workers of a job. By UID: a deleted job of the same name has other pods.

    `has_roles`: whether there are members of other roles, which an autoscaler of the workers must not count.
    """
    return f"{LABEL_JOB_UID}={job_uid}" + (f",{LABEL_ROLE}={ROLE_WORKER}" if has_roles else "")
