"""`PYTHON=… make test-gpu`: the tests that need a GPU, by any Python that has torch: no root, no cluster, no network, no image.

Exit code 0: all that can run here have passed. 1: one has not. 2: something that they need is missing. 3: torch sees no GPU, so that
none could run. Those that need more GPUs than there are, or other ones, are skipped, each with its reason.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPORTED = ("trainer-image/library", "trainer-image/agent", ".")
"""Below the repository: what the tests import."""
NEEDED = ("torch", "numpy", "pytest", "hypothesis", "fsspec")
MARK = "pytest.mark.gpu"
MISSING, NO_GPU = 2, 3


def python_path() -> str:
    """Return PYTHONPATH for the processes that import this repository's code, before what is there already."""
    return os.pathsep.join([*(str(ROOT / path) for path in IMPORTED), *filter(None, [os.environ.get("PYTHONPATH")])])


def main() -> int:
    """Run them; the exit code."""
    # Ranks are forked from a server that has imported much. A package that asks for GPUs while it is imported would break CUDA in all of them.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    # For the processes that tests start, too.
    os.environ["PYTHONPATH"] = python_path()
    sys.path[:0] = [str(ROOT / path) for path in IMPORTED]
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        return _end(MISSING, f"{sys.executable} lacks {', '.join(lacking)}: name another one, PYTHON=… make test-gpu")
    try:
        harness = find_spec("tests.library.support.processes")
    except ModuleNotFoundError:
        harness = None
    if harness is None or not Path(harness.origin or "").is_relative_to(ROOT):
        return _end(MISSING, f"{sys.executable} has a package `tests` of its own, before which ours is not found")
    import pytest  # noqa: PLC0415 - it is known now that it is there
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        return _end(NO_GPU, f"torch {torch.__version__} of {sys.executable} sees no GPU: none of these tests can run")
    name = torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {torch.cuda.device_count()} x {name}", flush=True)  # noqa: T201 - for who runs it
    files = [str(path) for path in sorted((ROOT / "tests/library").glob("test_*.py")) if MARK in path.read_text()]
    # Not this repository's configuration: it names plugins that are not needed here.
    options = ["-c", os.devnull, "--rootdir", str(ROOT), "--import-mode=importlib", "-p", "no:cacheprovider", "-ra"]
    os.chdir(ROOT)
    return int(pytest.main([*options, "-m", "gpu", *files]))


def _end(code: int, output: str) -> int:
    print(output, file=sys.stderr)  # noqa: T201 - as above
    return code


if __name__ == "__main__":
    sys.exit(main())
