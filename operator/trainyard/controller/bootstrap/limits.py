"""Fit the limits of the process, and the pace of its garbage collector, to thousands of jobs and agents."""

import gc
import resource

GC_THRESHOLD_ALLOCATIONS = 20_000
"""Allocations between two garbage collections. Cycles are rare, and the default of 700 is one event of a large pod."""


def raise_open_file_limit() -> None:
    """Raise the number of open files to the hard limit: each waiting agent holds one, and container runtimes start with
    1,024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_garbage_rarely() -> None:
    """Leave imported objects out of all garbage collections, since they stay, and make fewer collections."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_ALLOCATIONS)
