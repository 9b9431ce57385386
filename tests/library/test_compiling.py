"""torch.compile: what it needs is reported before it is missed, and what it has compiled is found again."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tests.library.support.models import Network
from trainyard_agent import report
from trainyard_torch import start
from trainyard_torch.compilation import Image, compile_model, missing_requirements, this_image

ALL = {"g++", "gcc", "setuptools.command", "triton", "Python.h", "ATen/ATen.h"}


@pytest.mark.parametrize(
    ("device", "environ", "there", "missing"),
    [
        ("cpu", {}, ALL - {"triton", "gcc"}, []),
        ("cpu", {}, ALL - {"g++"}, ["a C++ compiler (g++)"]),
        ("cpu", {"CXX": "/opt/c++"}, ALL, ["a C++ compiler (/opt/c++)"]),
        (
            "cpu",
            {"CC": "no"},
            ALL - {"setuptools.command", "ATen/ATen.h"},
            ["setuptools", "torch's headers (libtorch-dev)"],
        ),
        ("cuda", {}, {"clang", "triton", "Python.h"}, []),
        ("cuda", {}, ALL - {"triton", "Python.h"}, ["Python's headers (python3-dev)", "triton"]),
        ("cuda", {"CC": "icc"}, ALL, ["a C compiler (icc)"]),
    ],
)
def test_what_it_needs(device: str, environ: dict[str, str], there: set[str], missing: list[str]) -> None:
    has = there.__contains__
    assert missing_requirements(device, environ, Image(has, has, has)) == missing


MISSING = missing_requirements("cpu", os.environ, this_image())


def test_names_stay_as_they_are() -> None:
    model = Network()
    x = torch.ones(1, 3)
    plain = model(x)
    counters.clear()
    assert compile_model(model, backend="aot_eager") is model
    assert torch.allclose(model(x), plain)
    assert counters["frames"]["ok"] == 1, "it is compiled"
    assert list(model.state_dict()) == ["layer.weight", "layer.bias"]


def test_what_torch_would_leave_as_it_is() -> None:
    class Mine(nn.Sequential):
        pass

    for model in (nn.Sequential(Network()), Mine(Network())):
        with pytest.raises(
            ValueError, match=r"forward of (Sequential|Mine) is torch's own, which torch does not compile"
        ):
            compile_model(model, backend="eager")


def test_a_backend_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"one of .*inductor.*, got 'gcc'"):
        compile_model(Network(), backend="gcc")


@pytest.mark.skipif(not MISSING, reason="there is a C++ compiler, and what it needs")
def test_without_a_compiler() -> None:
    with pytest.raises(ValueError, match=r"torch.compile needs .*, which this image does not have: build one that has"):
        compile_model(Network())


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard_torch.compilation.missing_requirements", lambda *_: [])
    # Set first, so that what is set meanwhile is taken back.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot be made in .*file/cache: Not a directory"):
        compile_model(Network(), tmp_path / "file" / "cache")
    compile_model(Network(), tmp_path / "cache")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache")
    compile_model(Network(), tmp_path / "other")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache"), "the environment goes first"


PROGRAM = """
import sys, torch
from torch._dynamo.utils import counters
from trainyard_torch.compilation import compile_model
from tests.library.support.models import Network
model = compile_model(Network(), sys.argv[1])
model(torch.ones(2, 3)).sum().backward()
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.skipif(bool(MISSING), reason=f"this image does not have {', '.join(MISSING)}")
def test_what_was_compiled_is_found_again(tmp_path: Path) -> None:
    def counted() -> list[int]:
        out = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert out.returncode == 0, out.stderr
        return [int(word) for word in out.stdout.split()]

    (hits, misses), (hits_again, misses_again) = counted(), counted()
    assert hits == 0
    assert misses == hits_again > 0
    assert misses_again == 0


@pytest.mark.gpu
@pytest.mark.skipif(
    bool(WANTING := missing_requirements("cuda", os.environ, this_image())),
    reason=f"this machine does not have {', '.join(WANTING)}",
)
def test_on_a_gpu(tmp_path: Path) -> None:
    model, x = Network().cuda(), torch.ones(2, 3, device="cuda")
    plain = model(x)
    counters.clear()
    assert torch.allclose(compile_model(model, tmp_path)(x), plain, atol=1e-3)
    assert counters["frames"]["ok"] == 1


def test_recompilation_is_reported_to_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_PROGRESS_FILE", str(tmp_path / "0"))
    seen: list[str | None] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        seen.append(report.phase())
        return graph.forward

    compiled = torch.compile(lambda x: x.sin() + x.shape[0], backend=backend, dynamic=False)
    with start(device="cpu") as training:
        compiled(torch.ones(2))
        training.progress(1)
        training.must_stop(1)
        compiled(torch.ones(3))
        assert report.phase() == "train"
        state = report.read(str(tmp_path / "0"))
        assert (state and state.step, state and state.phase) == (1, "train")
    compiled(torch.ones(4))
    assert seen == [None, "compile", "train"], "before the first report, between steps, and after the training"
