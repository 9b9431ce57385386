"""Clean up between two measurements: delete all objects of the first and wait until they are gone."""

from typing import Final

from dev.benchmarks.scale.api import BenchmarkError, wait
from dev.benchmarks.scale.fleet import NAMESPACE
from dev.benchmarks.scale.meter import await_quiet
from dev.benchmarks.scale.systems import SYSTEMS
from dev.benchmarks.scale.systems.base import PODS_PATH, Ground

GONE_SECONDS: Final = 300.0
QUIET_SECONDS: Final = 60.0
JOBS: Final = tuple(dict.fromkeys(system.jobs_path for system in SYSTEMS.values() if system.jobs_path))
MADE: Final = (f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs", PODS_PATH, f"/api/v1/namespaces/{NAMESPACE}/services")
EVENTS: Final = f"/api/v1/namespaces/{NAMESPACE}/events"
AT_ONCE: Final = "propagationPolicy=Background&gracePeriodSeconds=0"


def clean(ground: Ground) -> None:
    """Delete all systems' jobs and what was made for them, and wait until the control plane is idle. No operator that recreates them may run.

    Raises:
        BenchmarkError: an object was not deleted in time.
    """
    empty(ground)
    await_quiet(ground, QUIET_SECONDS)


def empty(ground: Ground, *more: str) -> None:
    """Delete all systems' jobs, what was made for them, and `more` collections.

    Raises:
        BenchmarkError: an object was not deleted in time.
    """

    def gone() -> bool:
        left = [path for path in (*dict.fromkeys((*more, *JOBS)), *MADE) if not ground.api.is_empty(path)]
        for path in left:
            _sweep(ground, path)
        return not left

    wait(gone, GONE_SECONDS, f"namespace {NAMESPACE} is not empty after {GONE_SECONDS:.0f} s", pause=1.0)
    _sweep(ground, EVENTS)


def _sweep(ground: Ground, path: str) -> None:
    try:
        ground.api.text("DELETE", f"{path}?{AT_ONCE}")
    except BenchmarkError:
        return  # the server gives up after a minute; what is left is deleted in the next round
