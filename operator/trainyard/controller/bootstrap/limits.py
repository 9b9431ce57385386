"""What the process may use of the kernel."""

import resource


def more_files() -> None:
    """As many open files as it may have: each agent that waits for a word holds one, and container runtimes begin with 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
