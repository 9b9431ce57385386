"""torch.compile: what it needs is told before it is missed, and what it has compiled is found again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from trainyard_torch.compiling import compiled, lacks


@pytest.mark.parametrize(
    ("device", "environ", "there", "said"),
    [
        ("cpu", {}, {"g++"}, None),
        ("cpu", {"CXX": "clang++"}, {"clang++"}, None),
        ("cpu", {}, set(), "needs a C++ compiler, and there is no g++ in this image"),
        ("cpu", {"CXX": "/opt/c++"}, {"g++"}, "there is no /opt/c++"),
        ("cuda", {}, {"clang", "triton"}, None),
        ("cuda", {}, {"gcc"}, "needs Triton for GPUs"),
        ("cuda", {}, {"g++", "triton"}, "needs a C compiler, and there is no gcc and no clang"),
    ],
)
def test_what_it_needs(device: str, environ: dict[str, str], there: set[str], said: str | None) -> None:
    found = lacks(device, environ, lambda name: name if name in there else None, triton="triton" in there)
    assert (found is None) if said is None else (found is not None and said in found)


def test_names_stay_as_they_are() -> None:
    model = nn.Linear(3, 2)
    x = torch.ones(1, 3)
    plain = model(x)
    assert compiled(model, backend="aot_eager") is model
    assert torch.allclose(model(x), plain)
    assert list(model.state_dict()) == ["weight", "bias"]


def test_a_backend_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"one of .*inductor.*, and is 'gcc'"):
        compiled(nn.Linear(1, 1), backend="gcc")


@pytest.mark.skipif(shutil.which("g++") is not None, reason="there is a C++ compiler")
def test_without_a_compiler() -> None:
    with pytest.raises(ValueError, match=r"no g\+\+ in this image: install one, or train without"):
        compiled(nn.Linear(1, 1))


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot be made in .*file/cache: Not a directory"):
        compiled(nn.Linear(1, 1), tmp_path / "file" / "cache")
    compiled(nn.Linear(1, 1), tmp_path / "cache")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache")
    compiled(nn.Linear(1, 1), tmp_path / "other")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache"), "the environment goes first"


PROGRAM = """
import sys, torch
from torch._dynamo.utils import counters
from trainyard_torch.compiling import compiled
model = compiled(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()), sys.argv[1])
model(torch.ones(2, 4)).sum().backward()
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, and this image has no g++")
def test_what_was_compiled_is_found_again(tmp_path: Path) -> None:
    def counted() -> list[int]:
        out = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, capture_output=True, text=True, timeout=300
        )
        return [int(word) for word in out.stdout.split()]

    (hits, misses), (hits_again, misses_again) = counted(), counted()
    assert hits == 0
    assert misses == hits_again > 0
    assert misses_again == 0
