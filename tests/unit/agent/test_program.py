"""Which commands are Python programs, and which variables their libraries may have read."""

import pytest

from trainyard_agent.program import Program, differing, parse, stable
from trainyard_agent.recorder import FILE_VARIABLES, PIPE_VARIABLE


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python train.py --lr 1", Program(["python"], module=False, name="train.py", arguments=["--lr", "1"])),
        (
            "/usr/bin/python3.11 -m pkg.train -m x",
            Program(["/usr/bin/python3.11"], module=True, name="pkg.train", arguments=["-m", "x"]),
        ),
        (
            "python3 -uB -W error -Xdev -X utf8 a.py",
            Program(["python3", "-uB", "-W", "error", "-Xdev", "-X", "utf8"], module=False, name="a.py", arguments=[]),
        ),
        ("python -c pass", None),
        ("python -", None),
        ("python", None),
        ("python -u", None),
        ("python -m", None),
        ("python -i a.py", None),
        ("python -I a.py", None),
        ("python -X importtime a.py", None),
        ("python -X", None),
        ("python -W", None),
        ("python --version", None),
        ("python -mpkg", None),
        ("python2 a.py", None),
        ("pythonista a.py", None),
        ("torchrun a.py", None),
        ("sh -c python", None),
        ("", None),
    ],
)
def test_command_is_parsed_as_python_program(command: str, program: Program | None) -> None:
    assert parse(command.split()) == program


def test_variables_of_rank_or_attempt_are_ignored() -> None:
    own = {"RANK": "1", "MASTER_ADDR": "a", "TRAINYARD_ATTEMPT": "2", "TORCHELASTIC_RUN_ID": "u-2", "WORLD_SIZE": "8"}
    own |= dict.fromkeys([*FILE_VARIABLES, PIPE_VARIABLE], "/tmp/flight-recorder-job/2/rank_")  # noqa: S108 - only a name
    assert stable({**own, "OMP_NUM_THREADS": "1"}) == {"OMP_NUM_THREADS": "1"}
    named = {"TRAINYARD_RANK_VARIABLES": "JAX_PROCESS_ID=rank", "JAX_PROCESS_ID": "3"}
    assert stable({**named, "JAX_PLATFORMS": "cpu"}) == {"JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize("name", ["TF_CONFIG", "DMLC_TRACKER_PORT", "LIGHTGBM_MACHINES", "COORDINATOR_PORT"])
def test_addresses_of_an_attempt_are_ignored(name: str) -> None:
    assert stable({name: "worker-0:29501", "OMP_NUM_THREADS": "1"}) == {"OMP_NUM_THREADS": "1"}


def test_variables_that_differ_between_ranks_are_found() -> None:
    one, two = ({"RANK": rank, "WORLD_SIZE": "2"} for rank in "01")
    assert differing(["LOCAL_RANK", "RANK", "WORLD_SIZE"], one, [one, two]) == ["RANK"]
    assert differing(["RANK"], one, [one]) == []
    assert differing(["MASTER_PORT"], one, [{**one, "MASTER_PORT": "29500"}]) == ["MASTER_PORT"]
    assert differing([], one, [two]) == []
