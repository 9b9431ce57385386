"""The names that follow from a job's."""

from trainyard.api.constants import LABEL_JOB_UID, ROLE_WORKER


def worker_pod(job: str, index: int, attempt: int) -> str:
    """The pod's name: unique for all time, so that a new pod never waits for the name of a dead one."""
    return f"{job}-{ROLE_WORKER}-{index}-{attempt}"


def worker_host(job: str, index: int) -> str:
    """The host name, which stays the same from attempt to attempt."""
    return f"{job}-{ROLE_WORKER}-{index}"


def selector(job_uid: str) -> str:
    """The label selector of all pods of a job. By UID: a namesake that was deleted has other pods."""
    return f"{LABEL_JOB_UID}={job_uid}"
