"""Each recipe runs as it is, and learns what it is to learn."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.library.support.programs import free_port, started

RECIPES = Path(__file__).parents[2] / "examples/recipes"


def output(name: str, world_size: int, *words: str, parallelism: str = "", **more: str) -> str:
    """What the first process has printed."""
    with started(RECIPES / name, world_size, *words, TRAINYARD_PARALLELISM=parallelism, **more) as ranks:
        outputs = [rank.communicate(timeout=180) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * world_size, outputs
    return outputs[0][0]


def number(pattern: str, text: str) -> float:
    """The last that the pattern finds."""
    found = re.findall(pattern, text)
    assert found, text
    return float(found[-1])


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", text)]


@pytest.mark.parametrize(("name", "least"), [("images.py", 90), ("large_batch.py", 80)], ids=["DDP", "large batch"])
def test_pictures(tmp_path: Path, name: str, least: float) -> None:
    text = output(name, 2, "--checkpoints", str(tmp_path / "kept"))
    assert number(r"([\d.]+)% of pictures", text) > least


@pytest.mark.gpu
def test_pictures_on_a_gpu(tmp_path: Path) -> None:
    assert number(r"([\d.]+)% of pictures", output("images.py", 1, "--checkpoints", str(tmp_path / "kept"))) > 90


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("framework", "shorter", "longer", "result", "least", "most"),
    [
        ("accelerate", ("--steps", "40"), ("--steps", "200"), r"([\d.]+)% of signals", 90, 100),
        ("transformers", ("--steps", "40"), (), r"a loss of ([\d.]+) on", 0, 0.5),
        ("lightning", ("--epochs", "4"), (), r"([\d.]+)% of points", 90, 100),
        ("jax", ("--steps", "100"), (), r"mean error of ([\d.]+)", 0, 0.1),
    ],
    ids=["accelerate", "transformers", "lightning", "jax"],
)
def test_frameworks_resume_on_a_gpu(
    tmp_path: Path,
    framework: str,
    shorter: tuple[str, ...],
    longer: tuple[str, ...],
    result: str,
    least: float,
    most: float,
) -> None:
    if not find_spec(framework):
        pytest.skip(f"needs {framework}, which is not installed")
    group = {"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}
    group |= {
        "SLURM_JOB_ID": "1",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "JAX_LOCAL_DEVICE_IDS": "0",
        "JAX_PLATFORMS": "cuda",
    }
    group["JAX_COORDINATOR_ADDRESS"] = f"127.0.0.1:{free_port()}"
    kept = ("--checkpoints", str(tmp_path / "kept"))
    output(f"{framework}_train.py", 1, *kept, *shorter, **group)
    text = output(f"{framework}_train.py", 1, *kept, *longer, **group)
    assert number(r"resuming from step (\d+)", text) > 0
    assert least <= number(result, text) <= most


def test_powersgd_learns_with_a_part_of_the_bytes(tmp_path: Path) -> None:
    text = output("powersgd.py", 2, "--checkpoints", str(tmp_path / "kept"))
    assert number(r"([\d.]+)% of pictures", text) > 90
    assert number(r"with (\d+)% of the bytes", text) < 20


def test_characters_sharded_and_then_by_tensors(tmp_path: Path) -> None:
    kept = ("--checkpoints", str(tmp_path / "kept"))
    first = losses(output("characters.py", 2, *kept, "--steps", "20"))
    then = losses(output("characters.py", 2, *kept, "--steps", "40", parallelism='{"tensor": 2}'))
    assert (len(first), len(then)) == (1, 1), "it did not go on where the other one was"
    # A guess by chance has a loss of 2.6, by the frequency of letters 2.3.
    assert then[0] < 1.5 < first[0] < 2


def test_layers_in_stages(tmp_path: Path) -> None:
    kept = ("--checkpoints", str(tmp_path / "kept"))
    text = output("stages.py", 2, *kept, "--steps", "40", parallelism='{"pipeline": 2}')
    assert losses(text)[-1] < 1.5


def test_islands_meet_and_learn(tmp_path: Path) -> None:
    found = losses(output("diloco.py", 2, "--checkpoints", str(tmp_path / "whole")))
    assert len(found) == 8
    assert found[-1] < found[0] / 3
    kept = ("--checkpoints", str(tmp_path / "kept"))
    parts = [losses(output("diloco.py", 2, *kept, "--rounds", rounds)) for rounds in ("3", "8")]
    assert [len(part) for part in parts] == [3, 5]
    assert [loss for part in parts for loss in part] == found


@pytest.mark.parametrize(
    ("pace", "below"),
    # Who says nothing is wrong by 0.5; out of step no two runs are alike.
    [(("--steps", "100"), 0.2), (("--steps", "250", "--staleness", "2"), 0.1)],
    ids=["in step", "out of step"],
)
def test_a_parameter_server(pace: tuple[str, ...], below: float) -> None:
    assert losses(output("parameter_server.py", 3, *pace))[-1] < below


def test_parameter_server_stops_on_request_and_resumes(tmp_path: Path) -> None:
    kept = ("--checkpoints", str(tmp_path / "kept"))
    with started(RECIPES / "parameter_server.py", 3, *kept, "--steps", "1000000") as ranks:
        out = ranks[0].stdout
        assert out
        assert out.readline().startswith("step 50 ")
        # The server: the trainers received no request.
        ranks[2].terminate()
        outputs = [rank.communicate(timeout=60) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [90, 90, 90], outputs
    stopped = int((tmp_path / "kept/LATEST").read_text()[5:17])
    assert stopped >= 50
    further = stopped // 50 * 50 + 50
    text = output("parameter_server.py", 3, *kept, "--steps", str(further))
    assert re.findall(r"step (\d+) loss", text) == [str(further)], "it did not go on from there"
    assert losses(text)[-1] < 0.3


def test_parameter_server_resumes_with_other_trainers_and_pace(tmp_path: Path) -> None:
    """The updates are counted on; the pace is the program's, and not the checkpoint's."""
    kept = ("--checkpoints", str(tmp_path / "kept"))
    assert losses(output("parameter_server.py", 3, *kept, "--steps", "100"))[-1] < 0.3
    text = output("parameter_server.py", 4, *kept, "--steps", "150", "--staleness", "3")
    assert losses(text)[-1] < 0.3
    updates = int((tmp_path / "kept/LATEST").read_text()[5:17])
    # Each of three trainers has gone on from a third of the hundred.
    assert updates == 100 + 3 * (150 - 100 // 3)


@pytest.mark.parametrize(("page", "starts", "step"), [("README.md", 2, 200), ("parameter-server.md", 1, 20)])
def test_the_program_of_the_page(tmp_path: Path, page: str, starts: int, step: int) -> None:
    text = (RECIPES.parents[1] / "docs/training" / page).read_text()
    program = text.split("```python\n")[1].split("```")[0].replace("/checkpoints/run-1", str(tmp_path / "kept"))
    (tmp_path / "program.py").write_text(program)
    for _ in range(starts):
        with started(tmp_path / "program.py", 2) as ranks:
            outputs = [rank.communicate(timeout=120) for rank in ranks]
            assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert (tmp_path / "kept/LATEST").read_text().startswith(f"step-{step:012}-")
