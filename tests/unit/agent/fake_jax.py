"""A stand-in for the parts of JAX that the agent observes: JAX takes seconds to import."""

from pathlib import Path

DISTRIBUTED = """
import os, signal
class State: process_id, num_processes, client, noticed = 0, 1, None, False
global_state = State()
def initialize():
    global_state.process_id, global_state.num_processes = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    global_state.client = object()
    signal.signal(signal.SIGTERM, lambda *_: setattr(global_state, "noticed", True))
"""
BACKEND = """
def backends(): return {"cpu": 1}
def devices(): return backends()
"""
MULTIHOST = """
from jax._src import distributed
def reached_preemption_sync_point(step_id): return distributed.global_state.noticed and step_id % 10 == 0
"""


def fake_jax(folder: Path) -> None:
    """Write the package `jax`, in which a process that got SIGTERM stops after a multiple of ten steps."""
    source, experimental = folder / "jax/_src", folder / "jax/experimental"
    for package in (source, experimental):
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    (source / "distributed.py").write_text(DISTRIBUTED)
    (source / "xla_bridge.py").write_text(BACKEND)
    (experimental / "multihost_utils.py").write_text(MULTIHOST)
    (folder / "jax/__init__.py").write_text("from jax._src.xla_bridge import devices\nfrom jax import distributed\n")
    (folder / "jax/distributed.py").write_text("from jax._src.distributed import initialize as initialize\n")
