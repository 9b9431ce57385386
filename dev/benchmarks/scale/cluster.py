"""The cluster that it is measured on: the local one in its scale profile, brought up if there is none."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dev.benchmarks.scale.api import Api, BenchmarkError
from dev.benchmarks.scale.child import ROOT
from dev.benchmarks.scale.systems.base import Ground
from dev.localcluster import cluster
from dev.localcluster.addresses import API_URL
from dev.localcluster.errors import LocalClusterError
from dev.localcluster.lock import exclusive
from dev.localcluster.paths import Paths, from_environment
from dev.localcluster.shape import Profile, Shape

SHAPE: Final = Shape(nodes=10, gpus_per_node=1000, profile=Profile.SCALE)
"""Room for two fleets of 5,000 pods: one that goes and one that comes."""
FOLDER: Final = ROOT / "build" / "bench"


@contextmanager
def ground(shape: Shape = SHAPE) -> Iterator[Ground]:
    """The place for one benchmark at a time. A cluster that was up stays up; one that was not goes again.

    Raises:
        BenchmarkError: another benchmark is at it, or there is no such cluster to be had.
    """
    paths = from_environment()
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        with exclusive(FOLDER / "lock", patience=0, busy="another benchmark is being run: wait until it has ended"):
            found = cluster.current(paths)
            if found not in {None, shape}:
                raise BenchmarkError(f"a cluster of another shape is up ({found}): take it down, `make cluster-down`")
            if found is None:
                _localcluster(
                    "up",
                    f"--profile={shape.profile}",
                    f"--nodes={shape.nodes}",
                    f"--gpus-per-node={shape.gpus_per_node}",
                )
            try:
                yield _ground(paths, FOLDER)
            finally:
                if found is None:
                    _localcluster("down")
    except LocalClusterError as error:
        raise BenchmarkError(str(error)) from error


def _ground(paths: Paths, folder: Path) -> Ground:
    return Ground(paths, Api(API_URL, paths.pki), folder)


def _localcluster(*words: str) -> None:
    if subprocess.run([sys.executable, "-m", "dev.localcluster", *words], cwd=ROOT, check=False).returncode:
        raise BenchmarkError(f"`python -m dev.localcluster {words[0]}` did not succeed: see its output above")
