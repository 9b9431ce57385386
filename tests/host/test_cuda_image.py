"""What only a build shows of the image for GPUs: it holds what NCCL, Triton and fp8 need. No GPU is needed."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from dev.localcluster.inside import entered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.skipif(not os.environ.get("LONG"), reason="downloads 5 GB: make test-long")

COMPILE = (
    "printf '#include <Python.h>\\nint main(void){return 0;}' | gcc $(python3-config --includes) -x c - -o /tmp/it"
)
REQUIREMENTS = """
import os
from trainyard_torch.compilation import missing_requirements, this_image
assert missing_requirements("cuda", os.environ, this_image()) == []
"""


@pytest.fixture(scope="module")
def inside() -> Iterator[Callable[[Sequence[str]], list[str]]]:
    with entered("cuda") as wrap:
        yield wrap


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("ldconfig -p | grep -F libibverbs.so.1", id="InfiniBand"),
        pytest.param("ldconfig -p | grep -F librdmacm.so.1", id="RDMA connections"),
        pytest.param(COMPILE, id="compiler and Python.h"),
        pytest.param(f"python3 -c '{REQUIREMENTS}'", id="Triton"),
        pytest.param("python3 -c 'import torchao.float8'", id="torchao"),
    ],
)
def test_image_holds_what_gpus_need(inside: Callable[[Sequence[str]], list[str]], command: str) -> None:
    done = subprocess.run(inside(["sh", "-c", command]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
