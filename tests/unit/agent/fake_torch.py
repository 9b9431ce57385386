"""A stand-in for torch.distributed, which takes seconds to import."""

from pathlib import Path

TORCH = """
import os
rank, size = 0, 1
def init_process_group(backend=None, *, rank=-1, world_size=-1):
    if backend == "refuse": raise RuntimeError("Address already in use")
    globals().update(rank=rank, size=world_size)
get_rank = lambda: rank
get_world_size = lambda: size
"""


def fake_torch(folder: Path) -> None:
    package = folder / "torch/distributed"
    package.mkdir(parents=True)
    (folder / "torch/__init__.py").touch()
    (package / "distributed_c10d.py").write_text(TORCH)
    (package / "__init__.py").write_text("from .distributed_c10d import *")
