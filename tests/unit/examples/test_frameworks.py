"""Programs of other frameworks: they know nothing of Trainyard, and their image has the versions that the library's tests have at hand."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/frameworks"
OF_HOROVOD = ROOT / "examples/frameworks-horovod"
OF_JAX = ROOT / "examples/frameworks-jax"
OF_FLOWER = ROOT / "examples/frameworks-flower"
OF_MXNET = ROOT / "examples/frameworks-mxnet"
OF_PADDLE = ROOT / "examples/frameworks-paddle"
OF_RAY = ROOT / "examples/frameworks-ray"
OF_TENSORFLOW = ROOT / "examples/frameworks-tensorflow"
PROGRAMS = {path.stem: path for path in (ROOT / "examples/recipes").glob("*_train.py")}
EACH_IMAGE = pytest.mark.parametrize(
    "folder",
    [FOLDER, OF_FLOWER, OF_HOROVOD, OF_JAX, OF_MXNET, OF_PADDLE, OF_TENSORFLOW, OF_RAY],
    ids=lambda folder: folder.name,
)
EACH = pytest.mark.parametrize("name", PROGRAMS)


def pins(path: Path) -> dict[str, str]:
    """The versions in a locked list, by package."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+) \\$", path.read_text(), re.MULTILINE))


@EACH
def test_it_needs_its_framework_and_its_arrays_alone(name: str) -> None:
    nodes = [*ast.walk(ast.parse(PROGRAMS[name].read_text()))]
    whole = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {(node.module or "").partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    framework = {"mpi": "mpi4py", "flower": "flwr"}.get(name.removesuffix("_train"), name.removesuffix("_train"))
    assert framework in whole | parts
    # The Trainer is made of Accelerate, and asks for it.
    needed = {framework, "torch", *({"accelerate"} if framework == "transformers" else ())}
    if framework in {"jax", "lightgbm", "mpi4py", "mxnet", "paddle", "tensorflow", "xgboost"}:
        needed = {framework, "numpy"}
    assert whole | parts <= {*needed, *sys.stdlib_module_names}


@EACH
def test_it_is_short(name: str) -> None:
    assert len(PROGRAMS[name].read_text().splitlines()) < 200


def test_the_image_has_the_versions_that_are_tested() -> None:
    ours, tested = pins(FOLDER / "requirements.txt"), pins(ROOT / "tests/library/requirements.txt")
    assert {
        "accelerate",
        "deepspeed",
        "lightgbm",
        "lightning",
        "megatron-core",
        "transformers",
        "xgboost-cpu",
    } <= ours.keys()
    # These are tested on the cluster alone.
    of_deepspeed = {"deepspeed", "einops", "hjson", "msgpack", "ninja", "py-cpuinfo"}
    assert ours.keys() - tested.keys() == {*of_deepspeed, "lightgbm", "megatron-core", "xgboost-cpu"}
    assert all(tested.get(package, version) == version for package, version in ours.items())


def test_image_of_jax_has_all_packages() -> None:
    assert pins(OF_JAX / "requirements.txt").keys() == {"jax", "jaxlib", "ml-dtypes", "opt-einsum", "scipy"}


def test_image_of_flower_installs_nothing_at_run_time() -> None:
    assert "flwr" in pins(OF_FLOWER / "requirements.txt")
    assert "uv" not in pins(OF_FLOWER / "requirements.txt")


@EACH_IMAGE
def test_the_bases_own_torch_and_numpy_stay(folder: Path) -> None:
    assert not {"numpy", "torch"} & pins(folder / "requirements.txt").keys()


@EACH_IMAGE
def test_every_wheel_has_a_hash(folder: Path) -> None:
    lock = (folder / "requirements.txt").read_text().replace("\\\n", " ")
    lines = [line for line in lock.splitlines() if line and not line.startswith("#")]
    assert all("==" in line and "--hash=sha256:" in line for line in lines)
    assert "://" not in lock
