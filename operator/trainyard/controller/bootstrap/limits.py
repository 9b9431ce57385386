"""Raise the limits that the kernel sets for the process."""

import resource


def raise_open_file_limit() -> None:
    """Raise the number of open files to the hard limit: each waiting agent holds one, and container runtimes start with
    1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
